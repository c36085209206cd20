// Package etcdfence guards data in etcd with a lock: a write by a holder that has lost it is refused, by the server, in
// one step with the write.
//
// # Two forms
//
// [NewKV] is for data in the etcd that has the lock. Each write carries the comparison that the lock's key is there, by
// its create revision, and on its lease, so a write is done only while the lock is held.
//
// [Marks] is for data in an etcd whose writers hold their locks elsewhere, in another cluster say. For each resource a
// key holds the highest token that was accepted, the mark, and each write carries the comparison with it. A new tenure
// begins with [Marks.Claim], before its first read.
//
// Both give a [KV], which is a clientv3.KV: Put, Delete, Do and Txn are fenced, Get and GetStream pass, Compact is
// refused.
//
// # Guarantee
//
// Held: a write is carried out only in a revision before which the lock's key was there, as it was made for this hold,
// and on its lease. So none is carried out after the lock was released, its key deleted or its lease gone, whatever the
// pause and however late the write arrives.
//
// Marks: once a token has been accepted for a resource, by a Claim or a write, no older one is accepted for it. The
// mark is raised in the same revision as the write that raises it, or not at all. That holds for every token, 1 to
// 9223372036854775807, and for any number of processes.
//
// Neither needs a clock. Nothing is written by what is refused.
//
// # No guarantee
//
//   - Reads are not fenced. What a holder has read may be changed by its successor before it is used, unless it is used
//     in a write: that one is refused.
//   - A mark tells who came later, not who holds the lock: until a successor has claimed, a holder that has lost its
//     lock is accepted. [NewKV] refuses it from the moment of the loss, though nobody follows.
//   - Whoever writes to the data by another way is not fenced, nor is one who writes to the marks or to the lock's
//     keys.
//   - A write whose answer was lost may have been carried out. It is not repeated here. Who repeats it must be able to
//     stand its being done twice, as with etcd's own client: a comparison in [KV.Txn] tells the two apart.
//   - A restore of the data's etcd from a snapshot takes its marks back with it: claim again before anything is
//     written. A restore of the lock's etcd takes tokens back: raise the era (see package fence).
//
// # Failures
//
//	what happens                                    what the caller gets               the data
//	lock lost, released or never there (NewKV)      *fence.StaleError                  unchanged
//	mark is newer than the token (Marks)            *fence.StaleError with the mark    unchanged
//	write was under way when that happened          *fence.StaleError                  unchanged
//	caller's own comparison does not hold           Succeeded is false, as ever        as its Else says
//	server refuses (limits, lease, permission)      the client's error                 unchanged
//	answer lost, connection lost, ctx ended         the client's error                 unknown
//	no token in the context (Marks)                 matches fence.ErrInvalidToken      unchanged, nothing sent
//	resource empty or too long (Marks)              error that says so                 unchanged, nothing sent
//	write to a mark by way of a KV                  error that says so                 unchanged, nothing sent
//	something else has written the mark             matches ErrMalformedMark           unchanged until it is mended
//	mark deleted by an operator                     accepted: every old token is too   never delete a mark
//
// # Limits and cost
//
// A write is one transaction: one request, one entry in etcd's log, as without the fence. With Marks it is two requests
// when it raises the mark, which Claim does once for all. A transaction with If or Else that only reads costs an entry
// in the log too, which it does not without the fence.
//
// Etcd counts the operations of a transaction, 128 by default, and takes from that what the transactions around it
// have. NewKV leaves 128 of them to a transaction that has neither If nor Else, and 126 to one that has. Marks leaves
// 127 and 126, and one more once the mark has been raised. The request is larger by the lock's key and its queue's
// name, or by the mark's key and value, some of them twice.
//
// # Permissions
//
// Where etcd has authentication on, NewKV needs what its lock needs: to read the range of keys with the prefix
// Options.Prefix + name + "/". Marks needs to read and to write the marks' keys. Both need what the caller's own
// operations do. Let nobody else write there, and nobody but the writers to the data: authentication is what makes the
// fence the only way.
package etcdfence
