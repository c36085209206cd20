// Package s3fence keeps a holder that has lost its lock from writing to an object in S3, or in another store with S3's
// conditional writes. It uses the AWS SDK for Go v2.
//
// # Scope
//
// A [Bucket] fences single objects: each object is a resource and carries its mark, the token of its last write. The
// verbs are those of package fence. A holder calls [Bucket.Claim] once, before its first read, and writes with
// [Bucket.Put] or [Bucket.Update]. [Bucket.Check] only refuses early. [Bucket.Probe] reports whether an endpoint is safe
// to use.
//
// The token is the one in the context, see [fence.FromContext]. A lock's context carries its token.
//
// # Locks
//
// An object follows the lock of the first token that it accepts with a name, see package fence, until [Bucket.Move].
// The same holds for the tokens of readers. [Bucket.Get] returns the lock.
//
// # Readers
//
// To read one object once, the holder of a read lock needs only [Bucket.Get]. It returns the lock and the mark of the
// version that it has read. If the lock is the holder's and the mark is not above its token, no newer writer has written
// that version. To read several times, it claims with [Bucket.ClaimRead] before the first read, which keeps a paused
// writer from writing in between, and calls [Bucket.CheckRead] after the last read, before the result is used; see
// package fence.
//
// # Guarantee
//
//   - Once a write or a Claim with a token is done, the object accepts no older token, not even in a write that is
//     still under way. Once a ClaimRead or CheckRead is done, the same holds for older writers. This needs no clock and
//     holds for any pause and any number of processes.
//   - Once an object follows a lock it accepts no token of another until Move. After Move it accepts none of the former
//     lock, not even in a write that is still under way.
//   - A write replaces exactly the version whose mark it compared with its token, and that Update passed to fn;
//     otherwise it is not done. So no accepted write is lost: the next writer has seen it.
//   - A write is done once or not at all, even if its answer is lost; see below, and for proxies the next section.
//
// The guarantee needs an endpoint that checks If-Match and If-None-Match: * in one step with the write, that never
// returns an object's content with the ETag of a later write, and whose reads return the last write that was done.
// Amazon S3 does all of that. Call Probe once at start for any other endpoint.
//
// # No guarantee
//
//   - Reads are not fenced; a CheckRead after a read shows whether it was in time. A successor can change what a holder
//     has read before the holder uses it, except inside Update.
//   - A mark shows which holder came later, not who holds the lock. Until a successor has claimed, the object accepts a
//     holder that has lost its lock.
//   - Writes, copies and deletions that do not go through this package are not fenced. A deleted object has no mark,
//     follows no lock and accepts every old token again; a restored version has an old mark. Exempt the objects from
//     expiry rules.
//   - A replica of the bucket, for example in another region, is another endpoint. Write through one of them only.
//   - Some proxies repeat a PUT after an error and may answer with the 412 of the second copy, or with its 409 while
//     the first is under way. This package notices if the first was done, unless two other writes of the same token
//     have followed by then: in that case it does the write again on top of them, and Update calls fn again. If the
//     first is done after the last attempt was read back, the error matches ErrContended all the same. Turn off such
//     retries if that matters.
//   - Each object has its own mark. To change several objects as one, use a manifest: write them under new
//     keys, and then swap the fenced object that lists them; see the example of [Bucket.Update].
//   - A token is not a credential. Probe is not a proof: it finds endpoints that ignore conditions, and most that race.
//
// # Failures
//
//	what happens                                    what the caller gets                 the object
//	a mark is newer than the token                  *fence.StaleError with the mark      unchanged
//	overtaken by a newer token while writing        *fence.StaleError with the mark      unchanged
//	the object follows another lock, or follows     *fence.OtherLockError                unchanged
//	one and the token has no name
//	overtaken by a claim of another lock, or Move   *fence.OtherLockError                unchanged
//	overtaken in either way by two writes or more   ErrUnknown and the refusal           unchanged, or written before them
//	overtaken by the same token or an older one     no error: it reads and tries again   as written
//	the same, too often; or every attempt gets 409  matches ErrContended                 unchanged
//	or 429, or finds no connection
//	answer lost, the write was done                 no error: its id is found            as written, once
//	answer lost, the write was not done             no error: it is sent again           as written, once
//	answer lost, and two writes followed            matches ErrUnknown                   unknown
//	the same, by a newer token, or another lock     ErrUnknown and the refusal           unknown
//	answer lost, and then nothing can be read       matches ErrUnknown                   unknown
//	409 or 412, and then nothing can be read        matches ErrUnknown                   unknown
//	ctx ends while a write may be under way         ErrUnknown, ctx's error, its cause   unknown
//	any other refusal, as 403, or 501               the client's error                   unchanged
//	no envelope, or another one                     matches ErrMalformed                 unchanged
//	no token in the context, or a lock's name that  matches fence.ErrInvalidToken        unchanged, nothing sent
//	is too long; for Move, no name of one lock
//	key empty or too long, payload too large        an error with the legal range        unchanged, nothing sent
//	endpoint ignores conditions                     every stale write is accepted        call Probe
//
// # Lost answers
//
// If a conditional write is retried after its answer was lost, the endpoint answers 412 because of the first attempt.
// The SDK would report a refusal, so this package turns off the SDK's retries for conditional writes and retries them
// itself. The envelope of a write has an id of the write and the id of the write that it replaced. After an unclear
// answer the package reads the object: if the write was done, its id is there unless two other writes have followed. A
// retry sends the same bytes under the same condition, so at most one attempt is done.
//
// # The envelope
//
// The token is in the object's body and not in its metadata, because a copy can change metadata and keep the ETag. One
// line precedes the payload:
//
//	leasefence-s3fence/1 <id> <previous id> w 54 0 orders
//
// Its fields are the format, the id of the write and of the write that it replaced (26 characters, A to Z and 2 to 7;
// hyphens for none), w for written or c for claimed and never written, the mark of writers, or 0 if none has come, the
// mark of readers, or 0 if it is not higher, and the name of the lock, or nothing. In the name, "%" and two upper-case
// hex digits stand for each byte except A-Z, a-z, 0-9 and "-._~/". In a shell, head -n 1 shows the line and tail -n +2
// the payload. The package neither reads nor overwrites an object without this line: store such content again under a
// new key.
//
// # Cost and limits
//
// Put sends two requests: one reads at most 7 KiB, the longest line, and one writes. Update and Claim send two: one
// reads the object and one writes. Check sends one. ClaimRead sends the same as Claim, or only the read if the mark
// need not rise. CheckRead sends one, which reads the line; if its holder has not claimed, the requests of ClaimRead
// follow. Payloads are held in memory, and a claim downloads and uploads the payload: list large data instead, in
// objects of other keys. Concurrent writers of one object, and readers that claim, delay each other, as with any
// compare-and-swap. One PutObject writes a payload. It has at most [Options].MaxSize bytes, by default 64 MiB.
//
// # Permissions
//
// The client, also that of a reader that claims, needs GetObject and PutObject on the keys, and ListBucket: without it
// the endpoint answers 403 for a missing object. Probe also needs DeleteObject on keys that start with
// ".leasefence-probe-". A bucket policy can refuse writes without a condition (s3:if-match, s3:if-none-match). It does
// not compare tokens.
package s3fence
