// Package network has scenarios of the network between clients and etcd: it swallows messages, delays them, loses
// single answers, or cuts off one endpoint.
package network
