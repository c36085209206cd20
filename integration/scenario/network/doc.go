// Package network proves what leasefence promises while the network between a client and a cluster of three misbehaves.
// Each scenario is a test of its own, for locks and for elections.
package network
