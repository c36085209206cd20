// Package integration tests package k8slock against real etcd servers, with client-go's elector and with
// controller-runtime's manager. It is a separate module, so that k8slock requires no more than its importers need.
package integration
