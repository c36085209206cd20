// Package mix is the random mix of the safety suite: clients that lock, lead and work at resources, while a nemesis puts
// faults of all kinds in their way, several at a time, picked by a seed.
//
// # What runs
//
// A cluster of three members in processes of their own, with fsync on. Clients in this process, each with an etcd client
// behind proxies of its own, and clients that are processes of their own, to be stopped and killed. Each client has several
// workers. They wait for locks and elections, some hot and some cold, sometimes give up, hold for a while, write to the
// resource of that name with their token, and let go. Some are sleepwalkers: they do not look whether they still hold the
// lock, which is what a paused process looks like from outside. Some locks have readers too, sleepwalkers among them, who
// claim to read and check each read. Some are taken several at once, and there are a tree and a semaphore, whose root and whose name
// plain locks and readers want as well. A fault that is about a deadline takes locks on sessions of its own, which nobody else
// uses, and looks at one handle and at the context alone of another. One client's session
// stands on leases that the client has taken itself. In one election candidates have priorities, and leaders transfer their office. A resource behind fence/httpfence, and beside it one that gets the same writes and does not look
// at tokens: the control, which must go wrong. One resource is in a database, behind fence/sqlfence. Now and then a holder also
// writes with the token before its own, which must be refused.
//
// Members and clients speak TLS with certificates on both sides. Each client is a user with a password and a role of its own,
// limited to the names' prefix; the mix itself is root. Tokens of authentication last 2 s: their expiry is no fault of its
// own, but goes on all the time, and is counted.
//
// # Rounds
//
// Faults go on for a round. Then all of them are healed, and everybody who waits must be served within 2 × TTL + 3 s. When
// all have let go, there is peace for some seconds, in which no fault excuses anything: leaders follow each other before the
// observers' eyes, readers and writers of several clients stand in line, and locks of all kinds with etcd's own, and callers of one session while each deletion of
// their keys arrives twice, and an operator deletes keys whose handles have to end. After that nothing may be left below the names of the round. Each round has its own names, so
// that its history stands for itself: it is checked, and deleted if it is clean.
//
// # Faults
//
// A fault counts if it has met something: a message that was lost, bytes that were held, a holder that was stopped. Each
// kind has to, in a run. A leader whose process was stopped, or whose disk hung, may for a moment revoke leases that its
// successor keeps alive when it wakes up: etcd does so, nobody can hold on to such a lease, and the checkers take it for an
// operator's revocation; see woken.go. The report counts them.
//
// On a busy machine the cluster is slow without any of them. A plain client has each member commit all the while, and a commit that
// takes more than 250 ms stands in the history as a fault of the cluster; in peace, too. The report counts those in peace.
//
// To a checker, a client whose password, permission or certificate is refused is one that is cut off: it may lose its leases
// and give up, and nobody may notice anything else.
//
// # The restore
//
// After the rounds the cluster is taken back to a snapshot while clients lock, lead and write. Some have leases that are in
// the snapshot, others came after it; a number of revisions later all members are killed and restored. Everybody has to be
// told of it as such: handles end, acquisitions fail with lease.ErrRestored, and newcomers, who have seen nothing before,
// are refused by resources that keep their marks, and told why by Explain. A loss may come first. Then all begin again in the
// next era. The revisions between are so many that those used after the restore pass no mark: Explain would be right
// then to find nothing unusual. There are no other faults, so that whatever else somebody is told is wrong.
//
// # What is checked where
//
// Invariants I1 to I8 from the history, by package check. I9 by the restore itself, whose history is none for package check:
// in it revisions start again. By the run itself: that waiters are served, that no key, lease or goroutine is left after
// Close, and that memory does not grow from round to round.
package mix
