// Package check decides whether a history keeps the invariants I1 to I9 of the safety suite. The page docs/safety.md lists
// them, and says how each is checked: by sorts and sweeps over the events.
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
