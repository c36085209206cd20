// Package storage has scenarios of etcd's storage: no space is left, a member is defragmented, a snapshot is restored.
package storage
