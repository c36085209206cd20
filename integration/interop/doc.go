// Package interop proves that leasefence, etcd's own package concurrency and etcdctl exclude each other on one name, stand
// in one order, and see the same leaders; and that they share leases.
package interop
