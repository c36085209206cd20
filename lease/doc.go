// Package lease is the lock service's half of a fenced lock: sessions on etcd, and the locks that stand on them.
//
// A [Session] is one etcd lease, kept alive, for any number of locks. [Session.Lock] waits and returns a [Lock]:
// there is a handle if and only if the lock is held, and its context ends when it no longer is. [Session.Do] is
// the scoped form. Each handle carries a fencing token for the other half, the check at the resource: see
// package fence. A lock without that check is a hint.
//
// # Guarantees
//
// For one name, two handles are never live (their contexts not done) at the same instant, however requests and
// answers are delayed or lost, while processes run and clocks tick at about the same rate. A handle's deadline is
// the time at which the last acknowledged renewal was sent, plus the TTL that the server granted, less
// [Options].Margin, on the monotonic clock; a local timer ends the context then. Where the system has a clock
// that also runs while the host is suspended, the earlier of the two deadlines counts: [Lock.Err] and every call
// compare both at once, and the context of a host that was suspended ends when it wakes up (within half a second of that
// if the kernel gives no timer for it).
//
// Tokens of one name only grow, from holder to holder, across processes, leader changes and restarts. The token
// is the create revision of the lock's key, raised by [Options].Era.
//
// An acquisition that fails leaves nothing in the queue: what the server may or may not have done for an attempt
// whose answer was lost is undone in the background.
//
// # What it cannot guarantee
//
// A process that is paused past its deadline finds its context done when it wakes up, but a write that was on its
// way by then is beyond recall: only the fence at the resource refuses that one. An operator who deletes a lock's key
// or revokes its lease lets the next one in at once; the handle ends when the watch tells, in milliseconds for a lock
// held for 250 ms or more. So does a member of etcd 3.7.3 that was paused while it led and wakes up: it was seen to
// revoke leases which were renewed with its successor. A waiter whose key is deleted fails when the watch tells; if
// its turn comes just before that, it gets a handle that ends then.
//
// # After a restore
//
// A restore of etcd from a snapshot takes revisions, and so tokens, back, unless it is done with --bump-revision and
// --mark-compacted. Resources then refuse the new tokens, which are lower than their marks, until [Options].Era is
// raised.
//
// A session that sees revisions go back ends: with the first write or the first lease that it asks for after that or,
// once it has had a key in a queue, with the first renewal. Its handles are lost and acquisitions fail with [ErrRestored]; so
// do new sessions on the same client with the same era, until the revisions have passed the highest that was seen. Where
// the lease is not in the snapshot, the handles end with that. A member that lags is not taken for a restore.
//
// A restore brings back the keys of locks that were let go after the snapshot was taken, on leases that their sessions may
// keep alive. A session that does not end looks for such keys of its own, and deletes them, when its client has been without
// any connection and after a renewal that was not answered at first.
//
// A process that was started later has seen nothing. When its token is refused, [Lock.Explain] tells whether that is a
// restore or a lock that was lost.
//
// # What ends a handle
//
//	event                                          cause of the context      Unlock returns   matches
//	Unlock                                         ErrUnlocked               nil              -
//	no renewal acknowledged before the deadline    LostError DeadlinePassed  the same         ErrLost
//	lease expired at the server, or revoked        LostError LeaseGone       the same         ErrLost
//	key deleted by somebody else                   LostError KeyDeleted      the same         ErrLost
//	key taken off its lease by a write             LostError KeyOverwritten  the same         ErrLost
//	Session.Close                                  LostError SessionClosed   the same         ErrLost, ErrClosed
//	revisions went back                            LostError RevisionWentBack the same         ErrLost, ErrRestored
//	LockOptions.MaxHold                            ErrMaxHold                nil              -
//
// # Order
//
// Callers of one session that want the same name wait in the process, in the order in which they came. Only the first
// of them stands in etcd's queue, which is in order too. Who unlocks puts the next one of the session at the end of
// that queue: between two turns of one session everybody has a turn who stood in the queue when the first ended, so
// a process with a thousand waiters has no more turns than one with a single one. A caller behind k others of its
// session waits for at most k + 1 rounds of the queue. Callers that find the lease lost, and wait for a new one, are in
// the order in which they came too.
//
// # What it costs
//
// A lock and an unlock are a transaction each. Transactions of one session that are under way at the same time share
// commits, up to 120 in one; one that comes alone goes at once. Options.SeparateCommits turns that off. Handing over
// to the next caller of the same session is one transaction; to another session, its release and one event.
//
// Renewal is one request every third of the TTL for all locks of a session; where etcd has authentication on, its
// client authenticates for each. A session that waits for a name has one watch for it. A lock that is held or
// waited for longer than 250 ms has its key watched too, by one of at most 16 watches for all locks of the session;
// where a user may only watch name by name, by one of its own. Where there are more locks than that, these watches
// tell of other keys that lie between as well. Nothing polls. The keys of a session are few and used again, so that a
// name which is locked over and over does not fill etcd's index between compactions. A held lock takes less than
// 1 KiB.
//
// A request that is not answered is sent again, to the next endpoint where there is one; so is a watch that is not
// confirmed. With one of three endpoints dead no lease is lost, and waiters are served. The client takes its endpoints in
// turn for all its requests alike, so the next one may be the sick one again: the second attempt is sent to two endpoints
// at once, and the next ones to more, up to all; and renewals are sent one more each tenth of the TTL until one is answered.
//
// # With etcd's own concurrency package
//
// The queue of a name is the one that concurrency.Mutex and etcdctl lock use for the same name: they exclude each
// other, in one FIFO order. [Adopt] puts locks on the lease of a concurrency.Session. The other way round,
// concurrency.WithLease(session.Status().LeaseID) puts etcd's locks on ours: end such a concurrency.Session with
// Orphan, since its Close revokes the lease.
//
// # Permissions
//
// Where etcd has authentication on, a user needs read and write permission on the range of keys with the prefix
// Options.Prefix, or for each name on the range with the prefix Options.Prefix + name + "/". Nothing else is needed.
// etcd lets a user renew or revoke a lease only with permission on every key of it, which matters for Adopt.
package lease
