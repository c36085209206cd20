// Package check decides whether a history keeps the invariants of the safety suite.
//
// # Invariants
//
//	I1  at each resource, in the order of application, no accepted token is lower than one that was accepted before. Readers
//	    do not refuse each other, and what a reader has read does not change while its token is accepted
//	I2  the tokens of a name increase. Each is the create revision of a key that was first in its queue, or of a reader's key
//	    with no writer before it. A set has such a key in each of its queues; a node of a tree also has one, as a reader, in
//	    the queues of the nodes above; a slot's key came before all waiters for a permit
//	I3  the intervals in which handles of one name are live do not intersect. Those of readers may, and a semaphore may have as
//	    many as it has permits. A handle that has ended stays so, and ends at its deadline; a scoped form releases after its
//	    function has returned
//	I4  sets and counters at a fenced resource lose no acknowledged update
//	I5  a request is applied at most once, and not at all if its writer was told that it was not
//	I6  nobody deletes the key of an acquisition that is live or waits
//	I7  without faults, waiters are served within 2 × TTL + 3 s and in order, and no reader waits for readers; at the end no
//	    key is left
//	I8  I3 for elections; observers never see a lower token after a higher one, and miss no leader
//
// # How each is checked
//
//	file          invariants  by
//	resource.go   I1          a scan of what each resource has applied, in that order
//	tokens.go     I2          a sweep over enter and grant events
//	watch.go      I2, I6, I7  each name's queue, built again from the watch
//	intervals.go  I2, I3, I8  a sweep over grants and the last moments at which handles are known to be live, by token
//	kinds.go      I3          the same for the permits of a semaphore
//	release.go    I3          the ends of functions
//	deadline.go   I3          the deadlines of leases, by the renewals that were answered
//	operator.go   I3, I6      what an operator has deleted or revoked
//	updates.go    I4          the values that each resource has applied
//	requests.go   I5, I4      a look at each request: its sender was told what the resource has done
//	register.go   I4          porcupine, with a register as the model
//	progress.go   I7          a sweep over waiters, holders and faults
//	order.go      I7          a look at those who waited when somebody was served who had come later
//	observers.go  I8          a scan of each observer, beside the watch
//
// All take O(n log n) for n events but porcupine, which is given short windows: a history is cut where the state is known
// for certain, so the verdicts on the windows are together that on the whole.
//
// # Deadlines
//
// Each grant and each renewal of a lease is recorded when its answer arrives. A lease's deadline is counted from the send time
// of the last request that was answered before the deadline until then; that is the client's send time or a moment later. A
// handle that is asked after its deadline must not be live, whatever its timer does. Where only its context is looked at, it
// has half a second more.
//
// # What is excused
//
// An operator who deletes a key or revokes a lease lets the next holder in at once. From the beginning of such a fault the
// handle that it hits may be live beside another for one second. The first 250 ms of a handle do not count, since its key is
// not watched before. If another fault is near that is not one of another client, the handle has one second and a TTL after
// that fault has healed. A revocation takes the keys that its lease has at that moment, and none if it fails. A waiter whose
// key is taken may still be granted the lock, with a handle that ends as soon.
//
// An observer may miss leaders while it begins anew, and those that a compaction discarded while its watch was broken. A
// context may end late in a process that did not run.
//
// # What order means
//
// Waiters of one session wait in line in the process, and sessions in etcd's queue. So no caller is granted a name before one
// that has waited longer, unless it takes over the place of a waiter of its session that gives up. The time of an enter event
// is not that of the place in the queue, and a client may have a session and the one that replaces it. A waiter therefore
// counts as overtaken when one client has passed it three times, each time by an acquisition that entered more than a second
// later.
//
// A fault may keep a waiter from its place. Between clients the rule therefore holds only without faults: none is on from a
// second before the later acquisition enters until it is granted, and none but an operator's was on in the TTL before that.
// Faults of other clients do not count. Within a session, which the lease of the keys identifies, the rule always holds for
// waiters that are served in the end. Readers and candidates of one session each stand in etcd's queue by themselves. An
// election in which a candidate is passed, because of a priority or a transfer, is not in order of arrival, and is left out.
// So are waiters that stand in several queues: whoever passes one has a key that was never first, which I2 finds.
//
// # What it cannot see
//
// A handle is known to be live only where a live event says so, so an overlap between two such events is missed. A watch that
// lags shows a deletion late, never early. After a restore of the cluster revisions start again: such a history is not for
// this package.
package check
