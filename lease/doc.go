// Package lease provides locks on etcd that carry fencing tokens. It is the lock service's half of a fenced lock;
// package fence is the other half, the check at the resource. A lock without that check is a hint.
//
// A [Session] is one etcd lease, kept alive, for any number of locks. [Session.Lock] waits until it holds a lock and
// returns it as a [Lock], whose context ends when the lock is no longer held. [Session.Do] runs a function under a
// lock. [Session.RLock] and [Session.RDo] share a lock among readers. [Session.LockAll] and [Session.DoAll] take
// several locks at once, [Session.LockTree] and [Session.DoTree] lock a node of a tree and everything below it, and
// [Session.Permit] and [Session.DoPermit] take one of a limited number of permits.
//
// # Guarantees
//
// Exclusion: for one name, no two handles are live (context not done) at the same instant, except those of readers,
// however requests and answers are delayed or lost, while processes run and clocks tick at about the same rate. The
// deadline of a handle is the time when the last acknowledged renewal was sent, plus the TTL that the server granted,
// minus [Options].Margin. A local timer ends the context then, on the monotonic clock and, where the system has one, on
// the clock that also runs while the host is suspended.
//
// Tokens of one name, also of its readers, only grow: across processes, leader changes and restarts. A token is the
// create revision of the lock's key, raised by [Options].Era.
//
// A failed acquisition leaves nothing in the queue. If its answer was lost, its key is deleted in the background.
//
// # What it cannot guarantee
//
// A process that was paused past its deadline finds its context done when it wakes up. A write that was already on its
// way cannot be called back; only the fence refuses it.
//
// If somebody deletes a lock's key or revokes its lease, etcd lets the next holder in at once. The first holder learns
// of it from a watch: within milliseconds if it has held the lock for 250 ms, and within a third of the TTL, or a second
// if that is longer, for the 257th and further locks of a session. The same happens after a member of etcd 3.7.3 was
// paused while it was the leader: on waking up, such a member was seen to revoke leases that had been renewed with its
// successor.
//
// Exclusion does not hold behind etcd's gRPC proxy (etcd grpc-proxy). It answers a renewal with the answer to one of its
// own, which it may have sent much earlier. So a deadline may be too late, by as long as etcd took to answer the proxy;
// the fence still refuses what is stale. Give the client the addresses of etcd's members.
//
// A restore of etcd takes revisions, and so tokens, back. When the session sees that, it ends with [ErrRestored]. The
// operator then raises [Options].Era; see docs/etcd.md. [Lock.Explain] reports whether that is why a resource
// refused a token.
//
// # What ends a handle
//
//	event                                         cause of the context     Unlock returns   matches
//	Unlock                                        ErrUnlocked              nil              -
//	no renewal acknowledged before the deadline   ReasonDeadlinePassed     the same         ErrLost
//	lease expired at the server, or revoked       ReasonLeaseGone          the same         ErrLost
//	key, or one key of a set, deleted by others   ReasonKeyDeleted         the same         ErrLost
//	key taken off its lease by a write            ReasonKeyOverwritten     the same         ErrLost
//	Session.Close                                 ReasonSessionClosed      the same         ErrLost, ErrClosed
//	revisions went back                           ReasonRevisionWentBack   the same         ErrLost, ErrRestored
//	longest hold reached, see WithMaxHold         ErrMaxHold               nil              -
//	somebody asked the holder, see Release        ErrAskedToRelease        nil              -
//
// # Order
//
// Callers of one session that want the same name wait inside the process, in the order of their calls. Only the first
// of them stands in etcd's queue, which is served in order too. After each turn a session goes to the back of that
// queue, so a process with 1,000 waiters gets no more turns than one with a single waiter. A caller behind k others of
// its session waits for at most k + 1 rounds of the queue.
//
// Each reader has its own place in etcd's queue. It waits for the writers that entered before it, and for no reader. A
// writer waits for everybody that entered before it. So neither starves: a reader does not overtake a writer that waits
// in etcd's queue. The fence needs that too, since a reader that entered later has the higher token.
//
// # With etcd's own concurrency package
//
// concurrency.Mutex and etcdctl lock use the same queue for the same name: all of them exclude each other, in one FIFO
// order. [Adopt] puts locks on the lease of a concurrency.Session. concurrency.WithLease(session.Status().LeaseID) puts
// etcd's locks on the lease of a [Session]: end such a concurrency.Session with Orphan, since its Close revokes the
// lease.
//
// # Who holds what
//
// [Inspect], [List] and [Watch] show holders and waiters, and [Release] frees a lock. They need a client and no
// session. To ask a holder to release, Release appends a line to the text in the holder's key; it changes no other key
// and no lease. etcdctl shows that line as a part of the text.
//
// # Permissions
//
// Where etcd has authentication on, a user needs read and write permission on the range of keys with the prefix
// Options.Prefix, or for each name on the range with the prefix Options.Prefix + name + "/". Nothing else is needed.
// etcd lets a user renew or revoke a lease only with permission on every key of it, which matters for [Adopt].
//
// What locks and renewals cost, and how requests are retried: docs/mechanics.md.
package lease
