// Package fence keeps a holder that has lost its lock from writing.
//
// # Scope
//
// A lock service issues a fencing token with every grant, and the resource enforces it. This package has the [Token],
// the helpers that carry it through a context, and [Guard], which checks tokens in memory for a resource in one Go
// process. A store that several processes share must check the token itself, in one step with the write.
//
// A paused holder cannot know that it has lost its lock: a pause of any length can follow any check on its side, and a
// write may already be on its way. Only the resource can refuse. This is Kleppmann's argument in "How to do distributed
// locking" (2016).
//
// [Hooks] report every token that is accepted or refused, for metrics and alerts.
//
// # The rules
//
//   - Claim before the first read of a tenure. Until the new token has reached the resource, the predecessor's token is
//     the highest there, and the predecessor can still overwrite data that the new holder has read. HDFS does the same:
//     a new NameNode makes the JournalNodes promise its epoch (newEpoch) before it reads the log.
//   - Check with every write, in one atomic step with it. Accept a token that equals the mark: otherwise the holder's
//     second write would fence the holder itself. A newer token raises the mark.
//   - Keep one mark for each resource. With one mark per row, a stale holder can still write the rows that the new
//     holder has not written.
//   - Readers never raise the mark of writers, neither with the token of a read lock nor with the latest token that
//     they saw: that would fence the writer that holds the lock. The tokens of read locks have a separate mark, see
//     below.
//   - Never delete a mark, even if the resource has no holder: without the mark every old token is accepted again.
//   - Use the tokens of one lock for each resource, see below. ETCD_LOCK_REV of `etcdctl lock` is the revision of a
//     response header and so no token of the lock.
//
// # A token belongs to a lock
//
// Tokens order the grants of one lock. A lock does not exclude the holder of another lock, whose token may be higher.
// The contexts of locks and elections carry the lock's name beside the token; [WithLock] adds it to other contexts. In
// every store that keeps marks, a mark follows the lock of the first token that comes with a name. From then on
//
//   - a token of another lock is refused with an [*OtherLockError], whatever the numbers are;
//   - a token that comes without a name, as from an older client, is refused too, unless the resource's AllowUnnamed is
//     set. The verbs of [Guard] that take no context know no names and accept it;
//   - Move makes the resource follow another lock.
//
// Where locks are nested, the context of the inner lock carries the inner lock's token. [ForLock] chooses the lock
// whose token a verb uses. Use it also under several locks that were granted as one. A name starts with the
// session's prefix. The fence cannot distinguish locks of the same name in two clusters, or in two namespaces of a
// client.
//
// # Readers
//
// A read lock is granted with a [ReadToken]. Grants that conflict come in the order of their tokens, so tokens are
// timestamps, and the check is basic timestamp ordering (Reed, 1978; Bernstein and Goodman, 1981) with two marks for
// each resource:
//
//	verb                          accepted if                              then
//	write or claim, token t       t >= write mark and t >= read mark       write mark = t
//	read or claim to read, r      r >= write mark                          read mark = r, if that is higher
//
// With one mark, or with one kind of token for readers and writers, either a paused writer writes while readers read,
// or readers that hold the lock are refused.
//
// Claim to read before the first read of a tenure: from then on a paused writer cannot change what the reader reads. A
// reader that reads one snapshot in one transaction does not need the claim. No check at one resource protects a value
// that was read in time and is written elsewhere later: pass the read token along, and check it in one step with that
// write.
//
// # Guarantee
//
// Once Claim, Check, Do or Load has accepted a token for a resource, the same Guard never accepts an older token for
// it, and no function of a Do with an older token is running or will run. Once ClaimRead, CheckRead or LoadRead has
// accepted a reader's token, the same holds for older writers. This needs no clock and holds for any pause.
//
// # No guarantee
//
//   - The answer of Check can be out of date when it returns. Use Do to write.
//   - A Guard knows only the tokens that were passed to it. Processes that share a store have separate Guards: there a
//     Guard only refuses early, and the store must decide.
//   - Marks are in memory. [Guard.Marks], [Guard.ReadMarks] and [Guard.Locks], and the methods that load them, preserve
//     them over a restart; Marks says when to save them.
//   - [Guard.Do] knows nothing of trees; see [Guard.ClaimPath].
//   - A token shows which holder came later, not who holds the lock now. Until a successor has claimed, a holder that
//     has lost its lock is accepted.
//
// # Failures
//
//	what happens                                      result
//	holder paused, successor has claimed              its writes are refused: ErrStale
//	holder paused, successor has not claimed yet      its writes are accepted: claim first, then read
//	write delayed on its way                          refused when it arrives: ErrStale
//	write retried with the same token                 accepted: the write must be idempotent
//	fn of Do fails or panics                          its error is returned; the mark stays raised
//	fn of Do hangs                                    newer tokens wait for it: bound it with a context
//	guard restarted, marks loaded                     as before
//	guard restarted, marks lost                       every token is accepted until the holder claims again
//	etcd restored from a snapshot                     revisions start lower: new tokens are refused until the era is
//	                                                  raised; lease.Lock.Explain distinguishes this from a lost lock
//	token of a lock that the resource does not follow refused: ErrOtherLock
//	token missing, zero, negative or malformed        refused: ErrInvalidToken
//	token of an era above MaxEra                      refused: ErrInvalidToken; see docs/guarantees.md
package fence
