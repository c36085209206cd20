// Package check decides whether a history keeps the invariants I1 to I9 of the safety suite, which docs/safety.md lists.
//
// # How each is checked
//
//	file          invariants  by
//	resource.go   I1, I4      a scan of what each resource applied, in that order
//	requests.go   I5, I4      the answer to each request, compared with what the resource did, and when
//	watch.go      I2, I6, I7  each name's queue, rebuilt from the watch
//	intervals.go  I2, I3, I8  a sweep by token over the grants and the last live event of each handle
//	deadline.go   I3          the deadlines of leases, computed from the renewals that were answered; and when scoped
//	                          functions returned, and their keys were deleted; the reasons of losses
//	operator.go   I3, I6      what operators deleted, overwrote or revoked
//	progress.go   I7          a sweep over waiters, holders and faults
//	order.go      I7          the waiters of each session, in the order of their tokens
//	observers.go  I8          a scan of what each observer saw, compared with the watch
//	restore.go    I9          a scan of the errors, and of the handles that were live at a restore
//
// All are sorts and sweeps over the events. No search for an order that explains them is needed: the tokens are the
// order of the grants, and each resource's record is the order of its requests.
//
// # What is excused
//
// An operator who deletes a key or revokes a lease lets the next holder in at once. From the beginning of such a fault,
// the handle that it hits may be live beside another for one second. The first 250 ms of a handle do not count, since
// its key is not watched before. If another fault that reaches the handle's client is near, the handle has until one
// second and a TTL after that fault has healed. A revocation takes the keys that are on the lease at that moment, and
// none if it fails. No fault takes the key of a caller that came more than one second after it. A waiter whose key is
// taken may still be granted the lock; its handle has to end just as soon.
//
// An observer may miss leaders while it starts again, and those that a compaction discarded while its watch was broken.
// A context may end late in a process that did not run.
//
// # What it cannot see
//
// A handle is known to be live only until its last live event, so an overlap that begins later is missed. A watch that
// lags shows a deletion late, never early. A restore of the cluster takes revisions back, so of the history of
// a restore only I1, I4, I5 and I9 are checked.
package check
