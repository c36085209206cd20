// Package cluster has the scenarios of what happens to the members of a cluster, each a test: a leader that moves or is
// isolated, members that are killed, restarted one by one or too many at once, and disks that are slow.
package cluster
