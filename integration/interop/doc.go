// Package interop tests that leasefence, etcd's own package concurrency and etcdctl exclude each other on one name,
// stand in one queue, see the same leaders and can share leases.
package interop
