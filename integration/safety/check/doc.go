// Package check decides whether a history keeps the invariants of the safety suite.
//
// # Invariants
//
//	I1  No resource accepts a token that is lower than a token that it accepted earlier. Readers do not refuse each
//	    other, and what a reader has read does not change while its token is accepted.
//	I2  The tokens of a name increase. Each is the create revision of a key that was first in its queue, or of a
//	    reader's key with no writer ahead of it. A set has such a key in each of its queues. A node of a tree also has
//	    one, as a reader, in the queues of the nodes above. A slot's key took the place of the first waiter for a
//	    permit, or is older than all waiters.
//	I3  The intervals in which handles of one name are live do not intersect, except those of readers. A semaphore has
//	    at most as many live handles as permits. A handle that has ended stays ended, and it ends by its deadline. Do
//	    and Run release after their function has returned.
//	I4  Sets and counters at a fenced resource lose no acknowledged update.
//	I5  A request is applied at most once, and not at all if its answer says so.
//	I6  Nobody deletes the key of an acquisition that is live or waits.
//	I7  Without faults, waiters are served within 2 × TTL + 3 s and in order, and no reader waits for readers. At the
//	    end no key is left.
//	I8  I3 holds for elections. Observers never see a lower token after a higher one, and miss no leader.
//
// # How each is checked
//
//	file          invariants  by
//	resource.go   I1          a scan of what each resource applied, in that order
//	tokens.go     I2          a sweep over enter and grant events
//	watch.go      I2, I6, I7  each name's queue, rebuilt from the watch
//	intervals.go  I2, I3, I8  a sweep by token over the grants and the last live event of each handle
//	kinds.go      I3          the same for the permits of a semaphore
//	release.go    I3          when scoped functions returned, and when their keys were deleted
//	deadline.go   I3          the deadlines of leases, computed from the renewals that were answered
//	operator.go   I3, I6      what operators deleted, overwrote or revoked
//	updates.go    I4          the values that each resource applied
//	requests.go   I5, I4      the answer to each request, compared with what the resource did
//	register.go   I4          porcupine, with a register as the model
//	progress.go   I7          a sweep over waiters, holders and faults
//	order.go      I7          each grant, compared with the waiters that came earlier and still wait
//	observers.go  I8          a scan of what each observer saw, compared with the watch
//
// Most are sorts and sweeps over the events. Porcupine's time grows much faster, so it gets short windows: a history is
// cut where the register's state is certain, so the whole is linearizable exactly if each window is.
//
// # Deadlines
//
// Each grant and each renewal of a lease is recorded when its answer arrives, with the time that has passed since the
// request. The deadline counts from the send time of the last request that was answered before the deadline that was
// valid until then. The recorded send time is the client's, or a moment later. A handle that is asked after its
// deadline must not be live, even if its timer is late. Where only its context is read, the timer has 500 ms more.
//
// # What is excused
//
// An operator who deletes a key or revokes a lease lets the next holder in at once. From the beginning of such a fault,
// the handle that it hits may be live beside another for one second. The first 250 ms of a handle do not count, since
// its key is not watched before. If another fault that reaches the handle's client is near, the handle has until one
// second and a TTL after that fault has healed. A revocation takes the keys that are on the lease at that moment, and
// none if it fails. A waiter whose key is taken may still be granted the lock; its handle has to end just as soon.
//
// An observer may miss leaders while it starts again, and those that a compaction discarded while its watch was broken.
// A context may end late in a process that did not run.
//
// # What order means
//
// Waiters of one session wait in line in the process, and sessions wait in etcd's queue. So no caller is granted a name
// before a caller that has waited longer, unless it takes over the place of a waiter of its session that gives up. An
// enter event is recorded before the place in the queue is taken, and a client may have a session and also the session
// that replaces it. So a waiter counts as overtaken only when one client has passed it three times, each time by an
// acquisition that entered more than a second later.
//
// A fault may keep a waiter from its place. Between clients the rule therefore applies only without faults: no fault is
// on from a second before the later acquisition enters until its grant, and no fault but an operator's was on in the
// TTL before that. Faults of other clients do not count. Within a session, which is identified by the lease of its
// keys, the rule always applies to waiters that are served in the end. Readers and candidates of one session each have
// their own place in etcd's queue. An election in which a candidate is passed because of a priority or a transfer is
// not in order of arrival, and is left out. So are waiters that stand in several queues: whatever passes such a waiter
// has a key that was never first, which I2 finds.
//
// # What it cannot see
//
// A handle is known to be live only until its last live event, so an overlap that begins later is missed. A watch that
// lags shows a deletion late, never early. A restore of the cluster takes revisions back, so this package cannot check
// a history that continues after a restore.
package check
