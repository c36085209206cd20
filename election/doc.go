// Package election is leader election on the sessions of package lease: a lease with a value, and the fencing token
// that makes it safe.
//
// Use [Run] in a service: it campaigns, calls a function while it leads, cancels the function's context when it no
// longer leads, waits for the function to return, and campaigns again. [Campaign] returns a [Leadership] instead, a
// handle for other forms. [Current] and [Observe] report the leader to everybody else. Each leadership carries a
// fencing token that the resource checks: see package fence. Without that check an election is only a hint.
//
// # Guarantees
//
// They are those of package lease: two leaderships of one election are never live (their contexts not done) at the same
// instant, and tokens grow from leader to leader, in the order of leading. The wall clock is never read. A leader that
// was paused past its deadline may still have a write on its way: only the fence at the resource refuses that write.
//
// Lease and key identify a leader, never its value: two candidates with the same value are two candidates.
//
// # What ends a leadership
//
//	event                                         cause of the context         Resign returns   matches
//	Resign, Transfer                              ErrResigned                  nil              -
//	a candidate of a higher priority              ErrHandedOver                nil              ErrResigned
//	an operator asked with lease.Release          lease.ErrAskedToRelease      nil              -
//	no renewal acknowledged before the deadline   lease.ReasonDeadlinePassed   the same         lease.ErrLost
//	lease expired at the server, or revoked       lease.ReasonLeaseGone        the same         lease.ErrLost
//	key deleted by somebody else                  lease.ReasonKeyDeleted       the same         lease.ErrLost
//	key taken off its lease by a write            lease.ReasonKeyOverwritten   the same         lease.ErrLost
//	lease.Session.Close                           lease.ReasonSessionClosed    the same         lease.ErrLost, lease.ErrClosed
//	revisions went back                           lease.ReasonRevisionWentBack the same         lease.ErrLost, lease.ErrRestored
//
// # Order, priority and transfer
//
// Candidates lead in the order in which they came. Each candidate has its own key in etcd's queue, even if several
// belong to one session.
//
// [Leadership.Transfer] hands over to one candidate by its value, past the candidates that wait before it. With
// [Options].Priority a leader hands over by itself: when a candidate of a higher priority has waited for a second, the
// leader's context ends with [ErrHandedOver], and the candidate leads as soon as the leadership is resigned. [Run]
// resigns it when lead has returned. If several candidates wait, the leader prefers the highest priority, and the first
// candidate among equals. If a leader dies or resigns, the next candidate in the queue leads, and a second later it
// hands over too if a candidate of a higher priority waits. [Options].KeepLead turns that off.
//
// The order of the queue, and of the tokens, is the order in which the keys were created; no key can move forward. So a
// leader that hands over deletes, in one transaction, its own key and the keys of the candidates in between. Each of
// these candidates enters again at the end, with a new key and a larger token. Tokens therefore grow in the order of
// leading, and nobody leads in between. It follows that:
//
//   - Only candidates of this package are passed. Candidates of concurrency.Election and etcdctl elect, and locks of
//     the same name, keep their places. A Transfer past such a contender fails with [ErrBlocked], and a leader prefers
//     no candidate behind it until it has gone, for which the leader looks every few seconds. A Transfer to a candidate
//     of etcd's own packages is possible, a Transfer to a lock is not.
//   - If anybody deletes the key of a waiting candidate, the candidate enters again at the end.
//   - A candidate that is passed makes a handful of requests, and loses its place among the others that were passed. A
//     candidate of a higher priority costs the others nothing until it has waited for a second.
//   - A leader passes more than 99 candidates in several transactions. If its process dies between two of them, some
//     candidates have entered again, and the first of the others leads.
//
// # What it costs
//
// As much as a lock: a campaign is one transaction. A resignation is another, and the next candidate gets one event. A
// change of leader wakes one candidate, however many wait; a second later the new leader reads once whether to prefer
// another. A waiting candidate has two watches, one on a key ahead of it and one on its own.
//
// # With etcd's own elections
//
// The keys are those of concurrency.Election with the same name and of etcdctl elect: candidates of all three stand in
// one queue and see each other's values. A value written to a leader's key on the same lease, as by
// concurrency.ResumeElection and Proclaim, is a proclamation like any other. Locks of package lease with the same name
// stand in that queue too.
//
// # Permissions
//
// As for locks: read and write permission on the range of keys with the prefix Options.Prefix + name + "/". Observers
// need read permission on it.
package election
