// Package interop tests that leasefence, etcd's own package concurrency and etcdctl exclude each other on one name,
// stand in one queue, see the same leaders and can share leases, and that a client with a namespace stays in it.
package interop
