// Package queue is the protocol by which locks and elections take turns: a queue of keys in etcd.
//
// # Layout
//
// The contenders of a name stand below the prefix name + "/". A contender's key is the prefix, the lower-case
// hex of its lease ID and, optionally, "-" and a suffix; it carries that lease. The contender with the smallest
// create revision is the owner. This is the layout of etcd's concurrency.Mutex and concurrency.Election, and so
// of etcdctl lock and elect: all of them exclude each other and stand in one order.
//
// A key below the prefix is a contender only if it is a direct child of the prefix and begins with the hex of
// the very lease that it is attached to. Every key that etcd's own code writes is one. A nested name (the queue
// of "a/b" lies below "a/"), a key without a lease and a key that somebody planted are not: they block nobody.
//
// # Steps
//
//   - Enter puts the contender's key and reads the owner in one transaction. The key is chosen before the first
//     attempt and not used again while an attempt may still arrive, so one whose answer was lost may be repeated.
//   - Await waits for the nearest older contender only, and looks again when it has gone, since it may have
//     given up without being the owner.
//   - Guard waits for the end of one's own key.
//   - Leave deletes the key if its create revision is still the entry's.
package queue
