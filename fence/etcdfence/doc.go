// Package etcdfence guards data in etcd with a lock: the server refuses a write by a holder that has lost the lock, in
// one step with the write.
//
// # Two forms
//
// [NewKV] is for data in the same etcd as the lock. Each write compares the create revision of the lock's key and its
// lease, so a write is done only while the lock is held.
//
// [Marks] is for data in an etcd whose writers hold their locks elsewhere, for example in another cluster. A key for
// each resource holds its marks, the highest tokens that were accepted, and the name of the lock. Each write compares
// that key. A writer begins its tenure with [Marks.Claim] and a reader with [Marks.ClaimRead], each before its first
// read.
//
// Both return a [KV], which is a clientv3.KV: Put, Delete, Do and Txn are fenced, Get and GetStream are not, and
// Compact is refused.
//
// # Guarantee
//
// NewKV: a write is done only while the lock's key exists with the create revision of this hold and with its lease. So
// no write is done after the lock was released, its key deleted or its lease gone, however long the holder pauses or
// the write is delayed.
//
// Marks: once a Claim or a write with a token was accepted for a resource, no older token is accepted for it. Once a
// ClaimRead or CheckRead was accepted, no older token of a writer is accepted. A write that raises the mark does so in
// the same revision. This holds for every token, 1 to 9223372036854775807, and for any number of processes. Once any of
// these was accepted with the name of its lock, no token of another lock is accepted until [Marks.Move].
//
// Neither needs a clock. A refused write changes nothing.
//
// # Readers
//
// The holder of a read lock claims with [Marks.ClaimRead] before its first read, which keeps a paused writer from
// writing while it reads, and calls [Marks.CheckRead] after a read, before the result is used; see package fence. NewKV
// needs no mark of readers: when a read lock is granted the keys of all older writers are gone, so their writes are
// refused.
//
// # Locks
//
// A mark follows the lock of the first token that comes with a name; see package fence. NewKV needs no name: it compares
// the lock's own key.
//
// # The value of a mark
//
// The value is the write mark, a space, and the read mark, or 0 if that is not higher. If the resource follows a lock, a
// space and the lock's name come last: "54 0 app/accounts".
//
// # No guarantee
//
//   - Reads are not fenced; a CheckRead after a read shows whether it was in time. A successor can change what a holder
//     has read. The holder's write that is based on the old value is refused.
//   - A mark shows which holder came later, not who holds the lock. Until a successor has claimed, a holder that has
//     lost its lock is accepted. [NewKV] refuses it from the moment of the loss, even without a successor.
//   - Writes to the data that do not go through the KV are not fenced. Writes to the marks or to the lock's keys break
//     the fence.
//   - A write whose answer was lost may have been done. The KV does not repeat it. Repeat it only if it is idempotent,
//     as with etcd's client. A read does not settle the outcome, because the write may be done after the read. Of two
//     writes that compare the same ModRevision in [KV.Txn] only one is done. With Marks, a write of an older token is
//     refused once a newer token has claimed.
//   - A restore of the data's etcd from a snapshot brings back old marks and, if it undoes a Move, the former lock:
//     claim or move again before anything is written. A restore of the lock's etcd sets revisions back: raise the era
//     (see package fence).
//
// # Failures
//
//	what happens                                    what the caller gets               the data
//	lock lost, released or never there (NewKV)      *fence.StaleError                  unchanged
//	a mark is newer than the token (Marks)          *fence.StaleError with the mark    unchanged
//	the token is of another lock (Marks)            *fence.OtherLockError              unchanged
//	write was under way when that happened          one of these                       unchanged
//	caller's own comparison is false                Succeeded is false, as usual       changed by its Else
//	server refuses (limits, lease, permission)      the client's error                 unchanged
//	answer lost, connection lost, ctx ended         the client's error                 unknown
//	no token in the context (Marks)                 matches fence.ErrInvalidToken      unchanged, nothing sent
//	resource empty or too long (Marks)              an error with the legal length     unchanged, nothing sent
//	write to a mark through a KV                    an error with the key              unchanged, nothing sent
//	something else has written the mark             matches ErrMalformedMark           unchanged until the mark is repaired
//	mark deleted by an operator                     success, for old tokens too        unfenced: never delete a mark
//
// # Limits and cost
//
// A write is one transaction: one request and one entry in etcd's log, as without the fence. With Marks a write that
// raises the mark takes two requests; after a Claim no write raises it. A transaction with If or Else that only reads
// also adds an entry to the log, which it would not do without the fence. Readers add nothing to the cost of a write.
// ClaimRead and CheckRead send one request, a read, or two if they raise the mark; after a ClaimRead no CheckRead
// raises it.
//
// Etcd limits the operations of a transaction, by default to 128, and counts those of outer transactions. With NewKV a
// transaction can have 128 operations, or 126 with If or Else. With Marks it can have 127, or 126 with If or Else, and
// one more once the mark was raised. The request is larger by the lock's key and its queue's name, or by the mark's key
// and value, some of them twice. The value has the bytes of the lock's name and at most 40 more.
//
// # Permissions
//
// With authentication in etcd, NewKV needs the same permission as its lock: to read the keys with the prefix
// Options.Prefix + name + "/". Marks needs to read and write the keys of the marks. Both need the permissions of the
// caller's own operations. Give no other user write access to these keys or to the data: otherwise they can bypass the
// fence.
package etcdfence
