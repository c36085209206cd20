// Package check decides whether a history keeps the invariants of the safety suite.
//
// # Invariants
//
//	I1  at each resource, in the order of application, no accepted token is lower than one that was accepted before; but two
//	    readers do not refuse each other, and what one has read does not change while its token is accepted
//	I2  the tokens of a name increase, and are the create revisions of keys that were first in its queue, or of readers' with no
//	    writer before them; of a set in each of its queues, of a node of a tree also in those above as a reader, of a slot before all
//	    who wait for a permit
//	I3  the intervals in which handles of one name are live do not intersect, but those of readers, and of a semaphore no more than it has permits; a dead handle stays dead, and
//	    dies at its deadline; a scoped form releases after its function has returned
//	I4  sets and counters at a fenced resource lose no acknowledged update
//	I5  a request is applied at most once, and not at all if its writer was told so
//	I6  nobody deletes the key of an acquisition that is live or waits
//	I7  without faults, waiters are served within 2 × TTL + 3 s, and in their order, and no reader waits for readers; at the
//	    end no key is left
//	I8  I3 for elections; observers never see a lower token after a higher one, and miss nobody who led
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
// for certain, so that the verdict is that of the whole.
//
// # Deadlines
//
// What grants or renews leases is recorded as its answer comes in. A lease's deadline is counted from when the last request
// was sent that was answered before the deadline until then; that is the client's send time or a moment later. A handle that is
// asked after that is not live, whatever its timer does. A context that is looked at alone has half a second more.
//
// # What is excused
//
// Who deletes a key or revokes a lease as an operator lets the next one in at once. From the beginning of such a fault the
// handle that it hits may be live beside another, for one second, a handle's first 250 ms not counted, since only then it is
// watched. Where another fault is near, and not one of another client, it has one second and a TTL after that has healed. A
// revocation takes the keys that its lease has last, and none if it fails. A waiter whose key is taken may still be granted
// the lock, by a handle that ends as soon.
//
// An observer may miss who led while it began anew, and what a compaction has discarded while its watch was broken. A context
// may end late in a process that did not run.
//
// # What order means
//
// Waiters of one session stand in a line, and sessions in etcd's queue. So nobody is granted a name before one who has waited
// for it since earlier, but for a waiter that is given the place of one of its session that gives up. The time of an
// enter event is not that of the place, and a client may have a session and the one that replaces it: found is who was
// passed three times by one client, each time by an acquisition that entered more than a second later.
//
// A fault may keep a waiter from its place. Between clients that rule is therefore one of the time without faults: none is
// on from a second before the other enters until it is granted, nor was one in the TTL before that, an operator's excepted.
// Faults of other clients do not count. Within a session, as the lease of the keys tells it, the rule holds always, for
// those who are served in the end. Readers and candidates of one session each stand in etcd's queue. Elections in which somebody is
// passed by others, as for a priority or a transfer, are not in order of arrival, and are left out. So are waiters that stand in
// several queues: who passes one of them was never first.
//
// # What it cannot see
//
// A handle is known to be live only where a live event says so, so an overlap that falls between two of them is missed.
// A watch that lags shows a deletion late, never early. After a restore of the cluster revisions start again: such a history is
// not for this package.
package check
