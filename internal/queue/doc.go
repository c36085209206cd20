// Package queue is the protocol by which locks and elections take turns: a queue of keys in etcd.
//
// # Layout
//
// The contenders of a name are keys below the prefix name + "/". A contender's key is the prefix, a letter from g to
// z for its class or none, the lower-case hex of its lease ID and, optionally, "-" and a suffix. It is attached to
// that lease. The contender with the smallest create revision is the owner. Without a class this is the layout of
// etcd's concurrency.Mutex and concurrency.Election, and so of etcdctl lock and elect: all of them exclude each other
// and share one order. Class r is that of readers, which do not exclude each other: a reader waits only for older
// contenders whose keys sort before all readers. Contenders of a class that a process does not know count like any
// other: a writer waits for all of them, and a reader for those whose classes sort before r.
//
// A key below the prefix is a contender only if it is a direct child of the prefix, has that form and is attached to
// the lease in it. Every key that etcd's own code writes is one. Nested names (the queue of "a/b" lies below "a/"),
// keys without a lease and keys that somebody planted are no contenders: they block nobody. Keys that begin with "~"
// after the prefix are reserved for this library, and lie outside the queue's range.
//
// A queue may have very many keys that are no contenders. An acquisition must not let etcd compare or sort them,
// because etcd commits nothing else meanwhile. Instead it reads the names of the keys, and looks up the leases only
// of those that have the form.
//
// # Steps
//
//   - Enter puts the contender's key and reports what is ahead of it. The key is chosen before the first attempt, and
//     is not used again while a request of an attempt may still arrive. So an attempt whose answer was lost may be
//     repeated.
//   - Await watches only the last two keys before the entry, one after the other. When the farther one ends, Await
//     reads what is ahead. Then it waits for the nearest. That is mostly the owner by then: its end is the waiter's
//     turn, and no further request is needed. Otherwise the waiter goes on with the keys ahead, because the farther one
//     may have given up. A watch starts at the present revision, since etcd serves a watch that starts in the past only
//     every 100 ms, and the queue is read once the watch exists. Where waits are short, watches are kept for a moment,
//     for the next wait for the same key.
//   - Enter, TryEnterAll and Leave take the entries of a set, of several queues, in one transaction.
//   - TakeSlot and PassTurnstile take a slot of a semaphore, which is a queue of its own below the name.
//   - HandOver leaves, and enters for another caller of the same process, in one transaction.
//   - Leave deletes the key if its create revision is still the entry's.
//   - Guards report the end of the session's own keys: a few hundred keys have a watch each, the others are read
//     regularly.
//
// Transactions that change a queue go through an etcd.Line. Those about one queue share commits there with other
// transactions of the same lease.
package queue
