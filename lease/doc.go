// Package lease provides locks on etcd that carry fencing tokens. It is the lock service's half of a fenced lock; package
// fence is the other half, the check at the resource. A lock without that check is a hint.
//
// A [Session] is one etcd lease, kept alive, for any number of locks. [Session.Lock] waits and returns a [Lock], which exists
// only while the lock is held or after it was. Its context ends when the lock is no longer held. [Session.Do] runs a function
// under a lock. [Session.RLock] and [Session.RDo] share a lock with other readers. [Session.LockAll] and [Session.DoAll] take
// several locks at once, [Session.LockTree] and [Session.DoTree] a node of a tree with all below it, and
// [Session.Permit] and [Session.DoPermit] one of a limited number of permits.
//
// # Guarantees
//
// For one name, no two handles are live (context not done) at the same instant, but those of readers, however requests and
// answers are delayed or lost, while processes run and clocks tick at about the same rate. A handle's deadline is the time when the last acknowledged
// renewal was sent, plus the TTL that the server granted, less [Options].Margin. A local timer ends the context then, on the
// monotonic clock and, where the system has one, on the clock that also runs while the host is suspended.
//
// Tokens of one name only grow, those of readers among them: across processes, leader changes and restarts. A token is the create
// revision of the lock's key, raised by [Options].Era.
//
// An acquisition that fails leaves nothing in the queue. If its answer was lost, its key is deleted in the background.
//
// # What it cannot guarantee
//
// A process that was paused past its deadline finds its context done when it wakes up. A write that was already on its way is
// beyond recall, and only the fence refuses it.
//
// If somebody deletes a lock's key or revokes its lease, the next holder is let in at once. The first one learns of it from a
// watch: in milliseconds if it has held the lock for 250 ms, and within a third of the TTL for the 257th and further locks of a
// session. The same happens if a member of etcd 3.7.3 was paused while it was the leader: when it woke up, it was seen to
// revoke leases that had been renewed with its successor.
//
// A restore of etcd takes revisions, and so tokens, back. The session ends with [ErrRestored] when it sees that, and the
// operator raises [Options].Era; see docs/mechanics.md. [Lock.Explain] tells whether a resource refused a token for that reason.
//
// # What ends a handle
//
//	event                                         cause of the context     Unlock returns   matches
//	Unlock                                        ErrUnlocked              nil              -
//	no renewal acknowledged before the deadline   ReasonDeadlinePassed     the same         ErrLost
//	lease expired at the server, or revoked       ReasonLeaseGone          the same         ErrLost
//	key deleted by somebody else, one of a set's  ReasonKeyDeleted         the same         ErrLost
//	key taken off its lease by a write            ReasonKeyOverwritten     the same         ErrLost
//	Session.Close                                 ReasonSessionClosed      the same         ErrLost, ErrClosed
//	revisions went back                           ReasonRevisionWentBack   the same         ErrLost, ErrRestored
//	WithMaxHold                                   ErrMaxHold               nil              -
//	Release, by whom it was asked                 ErrAskedToRelease        nil              -
//
// # Order
//
// Callers of one session that want the same name wait in the process, in the order of their calls. Only the first of them
// stands in etcd's queue, which is in order too. After each turn a session goes to the back of that queue, so a process with
// 1,000 waiters gets no more turns than one with a single waiter. A caller behind k others of its session waits for at most
// k + 1 rounds of the queue.
//
// Each reader stands in etcd's queue by itself. It waits for the writers that entered before it, and for no reader. A writer waits
// for everybody that entered before it. So nobody starves: a reader does not pass a writer that waits in etcd's queue. That is
// also what the fence needs, since a reader that came later has the higher token.
//
// A set of names stands in all of its queues at once, by itself too, at the same revision in each.
//
// # With etcd's own concurrency package
//
// concurrency.Mutex and etcdctl lock use the same queue for the same name: all of them exclude each other, in one FIFO order.
// [Adopt] puts locks on the lease of a concurrency.Session. concurrency.WithLease(session.Status().LeaseID) puts etcd's locks on
// the lease of a [Session]: end such a concurrency.Session with Orphan, since its Close revokes the lease.
//
// # Who holds what
//
// [Inspect], [List] and [Watch] show holders and waiters, and [Release] gets a lock free. They need a client and no session. To
// ask a holder to let go, Release puts a line behind the text in the holder's key; everybody else's keys and all leases stay as
// they are. Other versions and etcdctl show that line as a part of the text.
//
// # Permissions
//
// Where etcd has authentication on, a user needs read and write permission on the range of keys with the prefix
// Options.Prefix, or for each name on the range with the prefix Options.Prefix + name + "/". Nothing else is needed.
// etcd lets a user renew or revoke a lease only with permission on every key of it, which matters for [Adopt].
//
// What locks and renewals cost, and how requests are tried again: docs/mechanics.md.
package lease
