// Package httpfence carries a fencing token over HTTP and refuses stale ones at the server.
//
// # Scope
//
// At the client, [Transport] sends the token of a request's context in the header Fencing-Token, and [ReadError] turns
// a refusal back into the error it was, so that errors.Is(err, fence.ErrStale) holds across the wire. At the server a
// middleware parses the header, refuses what is stale, and puts the token into the request's context: made by
// [NewMiddleware] for any check, or by [NewAtomicMiddleware] for a resource that lives in the server's process. A
// handler answers with its store's refusal through [Error].
//
// A claim, which a new holder makes before its first read, is with a guard a request that writes nothing: any handler
// behind the middleware. With a store the handler makes the store's claim.
//
// # Guarantee
//
//   - A request that writes does not reach the handler without exactly one well-formed token, nor unless the check
//     accepted it. A check that fails refuses.
//   - Behind NewAtomicMiddleware check and handler are one step: once a newer token has been accepted for a
//     resource, no handler of an older one is running or will run for it.
//   - A request that only reads raises no mark.
//   - Transport sends the token of the context to the hosts it was given and to no others, redirects included, and
//     leaves the caller's request as it is.
//
// # No guarantee
//
//   - NewMiddleware refuses early; it does not decide. Between its check and the handler's write there may be a pause,
//     and a newer token: the store has to compare the token in one step with the write.
//   - A client that got no answer does not know whether it has written.
//   - A token is no credential. Whoever reaches the server can send the largest one and lock the others out of the
//     resource: authenticate before the middleware.
//   - A request's context carries its token to whatever the handler calls. A Transport there sends it on, to its
//     own hosts only.
//
// # Failures
//
//	what happens                                      what becomes of it
//	token older than the newest seen                  412, TypeStale; the handler has not run
//	no token where one is needed                      428, TypeMissing
//	token malformed, empty, or several values         400, TypeInvalid, for readers too
//	the check fails for another reason                503; the handler has not run
//	the request names no resource                     500; the handler has not run
//	body too large or broken (atomic)                 413 or 400; the mark is unchanged
//	holder paused while it sends its body (atomic)    the resource is free for newer tokens
//	overtaken after the check (not atomic)            the handler runs; its store refuses, Error answers 412
//	overtaken after the check (atomic)                cannot be: the newer token waits for the handler
//	the handler panics (atomic)                       as without the middleware; the mark stays raised
//	redirect to another host                          sent there without the token
//	header set by the caller, same as the context     sent once
//	header set by the caller, another token           not sent: an error
//	412 of another kind, If-Match for one             ReadError returns nil, and the body is whole
package httpfence
