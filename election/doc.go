// Package election is leader election on the sessions of package lease: a lease with a value.
//
// It is being built. Leaders and locks stand in the same kind of queue, so until then a lock that is held for as
// long as the role is, by [github.com/leasefence/leasefence/lease.Session.Do], is a leader: fenced, and told in
// time when it no longer is.
package election
