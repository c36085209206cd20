// Package s3fence keeps a holder that has lost its lock from writing to an object in S3, or in a store that has S3's
// conditional writes, through the AWS SDK for Go v2.
//
// # Scope
//
// A [Bucket] fences single objects: each is a resource, and carries its mark, the token that it was last written with.
// The verbs are those of package fence: [Bucket.Claim] once a tenure, before its first read, and [Bucket.Put] or
// [Bucket.Update] to write; [Bucket.Check] is for giving up early. A [Manifest] fences many objects as one: they are
// written first, and one fenced object that lists them is the swap point. [Bucket.Probe] tells whether an endpoint can
// be trusted with this.
//
// The token is the one that the context carries, see [fence.FromContext]: a lock's context carries its token.
//
// # Guarantee
//
//   - Once a write or a Claim with a token has been done, no older token is accepted for the object: neither are writes
//     that are under way. This needs no clock and holds whatever the pause and for any number of processes.
//   - A write replaces exactly what it has compared its token with, or what Update has given to fn, or is not done. So
//     no accepted write is lost: whoever comes next has seen it.
//   - It is done once or not at all, and an answer that was lost does not change that: see below.
//   - A reader of a Manifest sees all of a commit or none of it.
//
// That is so where the endpoint honours If-Match and If-None-Match: * in one step with the write, and never gives a
// content with the ETag of a later write. Amazon S3 does. Call Probe with every other, once at the start.
//
// # No guarantee
//
//   - Reads are not fenced. What was read can be changed by a successor before it is used, unless it is used by Update.
//   - A mark tells who came later, not who holds the lock: until a successor has claimed, a holder that has lost its
//     lock is accepted.
//   - Whoever writes, copies over or deletes an object by another way is not fenced. A deleted object has no mark, so
//     that every old token is accepted for it again; a version restored has an old one. Let expiry rules keep away.
//   - A replica of the bucket, in another region say, is another endpoint: write through one of them alone.
//   - Objects are not one: marks of two keys know nothing of each other. A Manifest is one resource.
//   - A token is no credential, and Probe no proof: it finds what ignores conditions, and most of what races.
//
// # Failures
//
//	what happens                                    what the caller gets                 the object
//	the mark is newer than the token                *fence.StaleError with the mark      unchanged
//	overtaken by a newer token while writing        *fence.StaleError with the mark      unchanged
//	overtaken by the same token or an older one     nothing: it reads and tries again    as written
//	the same, too often; or 409 or 429 every time   matches ErrContended                 unchanged
//	answer lost, the write was done                 nothing: its id is found             as written, once
//	answer lost, the write was not done             nothing: it is sent again            as written, once
//	answer lost, and two writes have come since     matches ErrUnknown                   unknown
//	the same, by a newer token                      matches ErrUnknown and ErrStale      unknown
//	answer lost, and then nothing can be read       matches ErrUnknown                   unknown
//	ctx ends after something was sent               matches ErrUnknown and ctx's error   unknown
//	any other refusal, 403 for one                  the client's error                   unchanged
//	no envelope, or a damaged one                   matches ErrMalformed                 unchanged
//	no token in the context                         matches fence.ErrInvalidToken        unchanged, nothing sent
//	key empty or too long, payload too large        error that says so                   unchanged, nothing sent
//	commit fails before the swap point              the error of the step                unchanged; parts are garbage
//	endpoint ignores conditions                     every stale write is accepted        call Probe
//
// # Lost answers
//
// A conditional write that is repeated after its answer was lost is answered 412 because of itself. The SDK's retries
// would report that as a refusal; so conditional writes are sent with them off, and repeated here. Every write has an
// id in its envelope, and names the id of the one that it replaced: after an answer that does not settle it the object
// is read, and a write is known to have been done as long as no two others have come after it. What a repetition sends
// is the same to the byte, under the same condition, so that one of them is done at most.
//
// # The envelope
//
// The token stands in the object's body, not in its metadata: a copy can change metadata and leave the ETag as it is.
// A line of 128 bytes comes before the payload:
//
//	leasefence-s3fence v01 0000000000000000054 <id> <previous id> w 0000000005 <crc> <crc>
//
// These are the version, the token in 19 digits, the write's id and that of the write that it replaced (26 of A to Z
// and 2 to 7; hyphens for none), w for written or c for claimed and never written, the payload's length in 10 digits,
// the payload's CRC-32C and that of the line up to there, in lower-case hex; then a line feed. By hand, head -c 128
// gives the line and tail -c +129 the payload. An object without it is neither read nor overwritten: bring it in under
// a new key.
//
// # Cost and limits
//
// Put is two requests, of which one reads 128 bytes; Update and Claim are two, of which one reads the object; Check is
// one. Payloads are held in memory, and Claim sends the payload through the client: keep large data in a Manifest's
// parts. Writers that compete for one object delay each other, as they do for any lock-free swap; one holder does not.
// A payload is written with one PutObject: at most 5 GiB less 128 bytes.
//
// # Permissions
//
// GetObject and PutObject on the keys, and ListBucket, without which a missing object is answered 403; Probe needs
// DeleteObject on what starts with ".leasefence-probe-". A bucket policy can refuse writes without a condition
// (s3:if-match, s3:if-none-match), which makes the fence the only way; exempt a Manifest's parts.
package s3fence
