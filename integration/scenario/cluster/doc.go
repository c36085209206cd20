// Package cluster has scenarios of the members of a cluster: they are killed, stalled, slow or isolated, or restored
// from a snapshot.
package cluster
