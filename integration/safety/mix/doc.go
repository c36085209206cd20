// Package mix is the random mix of the safety suite: clients lock, lead and write to resources, while a nemesis injects
// faults of all kinds, several at a time, picked by a seed. The page docs/safety.md says what runs.
//
// A round has names of its own, so its history is complete in itself: it is checked, and deleted if it is clean. Some
// seconds of peace end it, in which no fault excuses anything.
//
// # What counts and what is excused
//
// A fault counts if it has met something: a message that was lost, bytes that were held, a holder that was stopped. In
// a run each kind must count at least once. When a leader was paused, or its disk hung, it may on waking up revoke
// leases that its successor keeps alive. That is etcd's behaviour, and no client can keep such a lease, so the checkers
// treat it as an operator's revocation; see waking. The report counts these leases.
//
// On a busy machine the cluster is slow without any fault. A plain client therefore makes each member commit all the
// time, also in peace. The history records a commit that takes more than 250 ms as a fault of the cluster. For
// 2 × TTL + 3 s, such a commit excuses a caller in peace who fails. The checkers count what is excused, and at least one
// round must have none of it. The end of a round waits that much longer for its observers.
//
// To a checker, a client whose password, permission or certificate is refused is cut off: it may lose its leases and
// give up, and no other client may notice anything.
//
// # The restore
//
// After the rounds the cluster is restored from a snapshot while clients lock, lead and write. Some clients have leases
// that are in the snapshot, others came after it. A number of revisions later all members are killed and restored.
// Every client must learn that it was a restore: handles end, and acquisitions fail with lease.ErrRestored. Newcomers,
// which saw nothing before it, are refused by resources that keep their marks, and Explain tells them why. A loss may
// come first. Then all clients begin again in the next era. The snapshot is so many revisions old that the tokens
// between the restore and the next era pass no mark: otherwise Explain would be right to find nothing unusual. There
// are no other faults, so any other error is wrong.
//
// # What is checked where
//
// Package check judges the histories. The run itself checks that no key, lease or goroutine is left after Close, and that
// memory does not grow from round to round.
package mix
