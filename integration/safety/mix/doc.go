// Package mix is the random mix of the safety suite: clients that lock, lead and work at resources, while a nemesis puts
// faults of all kinds in their way, several at a time, picked by a seed.
//
// # What runs
//
// A cluster of three members in processes of their own, with fsync on. Clients in this process, each with an etcd client
// behind proxies of its own, and clients that are processes of their own, to be stopped and killed. Each client has several
// workers. They wait for locks and elections, some hot and some cold, sometimes give up, hold for a while, write to the
// resource of that name with their token, and let go. Some are sleepwalkers: they do not look whether they still hold the
// lock, which is what a paused process looks like from outside. A resource behind fence/httpfence, and beside it one that
// gets the same writes and does not look at tokens: the control, which must go wrong.
//
// # Rounds
//
// Faults go on for a round. Then all of them are healed, and everybody who waits must be served within 2 × TTL + 3 s. When
// all have let go, nothing may be left below the names of the round. Each round has its own names, so that its history
// stands for itself: it is checked, and deleted if it is clean.
//
// # Faults
//
// A fault counts if it has met something: a message that was lost, bytes that were held, a holder that was stopped. Each
// kind has to, in a run. A leader is kept from the others by stopping its process. When that wakes up it may, for a moment,
// revoke leases that its successor keeps alive: etcd does so, nobody can hold on to such a lease, and the checkers take it
// for an operator's revocation; see woken.go. The report counts them.
//
// # What is checked where
//
// Invariants I1 to I8 from the history, by package check. By the run itself: that waiters are served, that no key, lease
// or goroutine is left after Close, and that memory does not grow from round to round.
package mix
