// Package storage has the scenarios of what happens to etcd's data, and of the limits of its API, each a test: no space,
// defragmentation, few operations a transaction, too many requests, and a snapshot that is restored. Compaction while
// somebody waits is in the tests of the module's root.
package storage
