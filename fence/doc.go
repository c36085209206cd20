// Package fence keeps a holder that has lost its lock from writing.
//
// # Scope
//
// A lock service issues a fencing token with every grant; the resource enforces it. This package has the
// [Token], the helpers that carry it through a context, and [Guard], a checker in memory for a resource
// that lives in one Go process. A store that several processes share has to make the check itself, in one step
// with the write.
//
// A paused holder cannot know that its lock has gone: any check on its side can be followed by a pause of
// any length, and a write may be on its way already. Only the resource can refuse. This is Kleppmann's
// argument in "How to do distributed locking" (2016).
//
// # The rules
//
//   - Claim before the first read of a tenure. A mark protects nothing until the new token has reached the
//     resource: a holder that reads before it claims can have what it read overwritten by its predecessor,
//     whose token is still the highest there. HDFS does the same: a new NameNode has the JournalNodes
//     promise its epoch (newEpoch) before it reads the log it is to continue.
//   - Check with every write, in one atomic step with it. A token equal to the mark is accepted, or the
//     holder's second write would fence the holder itself; a newer one raises the mark.
//   - One mark for each resource. With a mark for each row, a stale holder still writes all the rows that
//     the new holder has not touched.
//   - Readers never raise the mark, be it with the token of a read lock or with the latest token that they
//     saw: that would fence the writer that holds the lock.
//   - Never delete a mark, not even that of a resource without a holder: without it every old token is
//     accepted again.
//   - One series of tokens for each resource. A token is the create revision of the lock's key. What
//     `etcdctl lock` exports as ETCD_LOCK_REV is the revision of a response header, another series, and a
//     resource that has seen both refuses the rightful holder or accepts a stale one.
//
// # Guarantee
//
// Once Claim, Check, Do or Load has accepted a token for a resource, the same Guard never again accepts an older
// one for it, and no function given to Do with an older one is running or will run. This needs no clock and
// holds whatever the pause.
//
// # No guarantee
//
//   - Check says nothing of what happens after it has returned. Do is the form to write with.
//   - A Guard knows what has passed through it. Processes that share a store each have marks of their own:
//     there a Guard only refuses early, and the store has to decide.
//   - Marks are in memory. [Guard.Marks] and [Guard.Load] carry them over a restart; see there for when
//     they must be saved.
//   - A token says who came later, not who holds the lock now. Until a successor has claimed, a holder
//     whose lock has gone is accepted.
//
// # Failures
//
//	what happens                                      what becomes of it
//	holder paused, successor has claimed              its writes are refused: ErrStale
//	holder paused, successor has not claimed yet      its writes are accepted: hence claim first, then read
//	write delayed on its way                          refused when it arrives: ErrStale
//	write retried with the same token                 accepted: its effect must stand being repeated
//	fn of Do fails or panics                          its error is returned; the mark stays raised
//	fn of Do hangs                                    newer tokens wait for it: bound it with a context
//	guard restarted, marks loaded                     as before
//	guard restarted, marks lost                       every token is accepted until the holder claims again
//	etcd restored from a snapshot                     revisions start lower: new tokens refused until the era is raised;
//	                                                  lease.Lock.Explain tells that from a lock that was lost
//	token missing, zero, negative or malformed        refused: ErrInvalidToken
package fence
