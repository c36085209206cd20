// Package queue is the protocol by which locks and elections take turns: a queue of keys in etcd.
//
// # Layout
//
// The contenders of a name stand below the prefix name + "/". A contender's key is the prefix, a letter from g to z for
// its class or none, the lower-case hex of its lease ID and, optionally, "-" and a suffix; it carries that lease. The
// contender with the smallest create revision is the owner. Without a class this is the layout of etcd's
// concurrency.Mutex and concurrency.Election, and so of etcdctl lock and elect: all of them exclude each other and stand
// in one order. The class r is that of readers, who do not exclude each other: a reader waits only for those that are older
// and sort before all readers. Of a class that it does not know, a process takes it that it excludes everybody.
//
// A key below the prefix is a contender only if it is a direct child of the prefix, has that form and is attached to the
// lease in it. Every key that etcd's own code writes is one. A nested name (the queue of "a/b" lies below "a/"), a key
// without a lease and a key that somebody planted are not: they block nobody. What begins with "~" after the prefix is
// kept for structures of our own, and lies behind the end of the queue's range.
//
// Where there are such other keys, and be it very many, an acquisition must not have etcd compare or sort them, since it
// does that while it commits nothing else. It reads the names of the keys and looks up the leases of those alone that have
// the form.
//
// # Steps
//
//   - Enter puts the contender's key and tells what is ahead of it. The key is chosen before the first attempt and
//     not used again while an attempt may still arrive, so one whose answer was lost may be repeated.
//   - Await waits for the last two before the entry only: first for the end of the farther one, after which it reads what is
//     ahead, and then for that of the nearest. If the nearest is the owner then, as it mostly is, its end is the waiter's turn,
//     with nothing more to ask; or else the waiter goes on with those who are ahead, for the other may have given up. A watch
//     begins at the present, since etcd serves one that begins in the past only every 100 ms, and the queue is read once it
//     exists. Where waits are short, watches are kept for a moment: the next wait for the same key does not need a new one.
//   - EnterAll, TryEnterAll and LeaveAll do the same for entries of several queues, in one transaction.
//   - TakeSlot and PassTurnstile take a slot of a semaphore, a queue of its own below the name.
//   - HandOver leaves and enters for another of the same process in one transaction.
//   - Leave deletes the key if its create revision is still the entry's.
//   - Guards tell of the end of one's own keys, by a watch for each of a few hundred and by reading the others.
//
// What changes a queue goes through an etcd.Line. What is about one queue shares commits there with what else its lease is about.
package queue
