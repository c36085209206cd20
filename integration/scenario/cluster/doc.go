// Package cluster has scenarios of the members of a cluster: the leader moves or is isolated, members are killed or
// restarted, the majority is lost, and disks are slow.
package cluster
