// Package storage has the scenarios of what happens to etcd's data, each a test: no space, defragmentation, and a snapshot that is
// restored.
package storage
