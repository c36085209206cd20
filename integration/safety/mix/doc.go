// Package mix is the random mix of the safety suite: clients lock, lead and write to resources, while a nemesis injects
// faults of all kinds, several at a time, picked by a seed.
//
// # What runs
//
// A cluster of three members runs in processes of their own, with fsync on. Some clients run in this process, each with
// an etcd client behind its own proxies. Others are processes of their own, which can be stopped and killed. Each
// client has several workers. A worker waits for locks and elections, some hot and some cold, and sometimes gives up.
// As a holder it writes to the resource of that name with its token, and then releases. Some workers are sleepwalkers:
// they do not check whether they still hold the lock, which is what a paused process looks like from outside.
//
// Some locks have readers too, sleepwalkers among them, which claim to read and check each read. Some locks are taken
// several at once. There are a tree and a semaphore; plain locks and readers compete for the tree's root and for the
// semaphore's name. A fault that tests deadlines takes two locks on sessions that nothing else uses: it asks one handle
// whether it is live, and looks only at the context of the other. The sessions of one client adopt leases that the
// client has granted itself. In one election candidates have priorities, and leaders transfer their leadership.
//
// The resources are behind fence/httpfence; one of them is in a database, behind fence/sqlfence. Beside each is a
// control, which gets the same writes and does not check tokens: it must go wrong. Now and then a holder also writes
// with the token before its own, which must be refused.
//
// Members and clients speak TLS with certificates on both sides. Each client is a user with a password and a role of
// its own, limited to the names' prefix; the mix itself is root. Auth tokens last 2 s. Their expiry is not a kind of
// fault: it happens all the time, and is counted.
//
// # Rounds
//
// Faults last for a round. Then all of them are healed, and every waiter must be served within 2 × TTL + 3 s. When all
// locks are released, some seconds of peace follow, in which no fault excuses anything: leaders follow each other while
// observers watch; readers and writers of several clients wait in the same queue, as do locks of all kinds and etcd's
// own; callers of one session take turns while each deletion of their keys arrives twice; and an operator deletes keys
// whose handles have to end. After that no key may be left below the names of the round. Each round has its own names,
// so its history is complete in itself: it is checked, and deleted if it is clean.
//
// # Faults
//
// A fault counts if it has met something: a message that was lost, bytes that were held, a holder that was stopped. In
// a run each kind must count at least once. When a leader was paused, or its disk hung, it may on waking up revoke
// leases that its successor keeps alive. That is etcd's behaviour, and no client can keep such a lease, so the checkers
// treat it as an operator's revocation; see woken.go. The report counts these leases.
//
// On a busy machine the cluster is slow without any fault. A plain client therefore makes each member commit all the
// time, also in peace. The history records a commit that takes more than 250 ms as a fault of the cluster, and the
// report counts such commits in peace.
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
// Package check checks I1 to I8 by the history. The restore checks I9 itself, since revisions start again in its
// history. The run itself checks that waiters are served, that no key, lease or goroutine is
// left after Close, and that memory does not grow from round to round.
package mix
