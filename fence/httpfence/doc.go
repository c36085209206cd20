// Package httpfence carries a fencing token over HTTP and refuses stale ones at the server.
//
// # Scope
//
// At the client, [Transport] sends the token of a request's context in the header Fencing-Token, or that of a read lock in
// Fencing-Read-Token. [ReadError] converts a refusal back into the server's error, so that errors.Is(err, fence.ErrStale)
// works across the network. At the server a middleware parses the header, refuses stale tokens and adds the token to the
// request's context. [NewMiddleware] creates one for any check, [NewAtomicMiddleware] one for a resource in the server's
// process. [Error] writes the refusal of a handler's store as the response.
//
// A new holder claims before its first read. With a guard, any request that the middleware counts as a write is a claim. With
// a store, the handler calls the store's Claim.
//
// # Readers
//
// The token of a read lock does not let a request write: with it alone such a request has no token, here and at a server that
// does not know the header. A request that only reads is checked before its handler runs, so that no writer that held the lock
// before writes while the handler reads: NewAtomicMiddleware does this with its guard, NewMiddleware with Options.CheckRead.
// A writer that comes later is let in. So a handler that reads for a reader checks its token once more when it has read, with
// [fence.Guard.CheckRead] or in the transaction of its store, and before it answers.
//
// # Guarantee
//
//   - A request that writes reaches the handler only with exactly one well-formed token that the check has accepted. If the
//     check fails, the request is refused.
//   - Behind NewAtomicMiddleware check and handler are one step: once a newer token was accepted for a resource, no handler of
//     an older token is running or will run for it. A handler must be done when it returns. So write
//     http.TimeoutHandler(fenced(handler), …). The middleware refuses fenced(http.TimeoutHandler(handler, …)).
//   - A request that only reads raises no mark of writers. With the token of a read lock, and a check for it, it reaches the
//     handler only if the check has accepted that.
//   - Transport sends the token of the context to its own hosts only, also after redirects, and does not change the caller's
//     request.
//
// # No guarantee
//
//   - NewMiddleware only refuses early. A newer token can be accepted between its check and the handler's write, so the store
//     must compare the token in one step with the write.
//   - A client without an answer does not know whether its request has written.
//   - A token is not a credential. A client can send the largest token and lock all others out of the resource: authenticate
//     requests before the middleware.
//   - The request's context carries its token to everything that the handler calls. A Transport there sends it to its own
//     hosts only.
//
// # Failures
//
//	what happens                                      result
//	token older than a mark                           412, TypeStale; the handler has not run
//	token missing in a request that writes            428, TypeMissing
//	only that of a read lock in one that writes       428, TypeMissing
//	token malformed, empty, or several values         400, TypeInvalid, also in requests that only read
//	both headers                                      400, TypeInvalid
//	the check fails for another reason                503; the handler has not run
//	the request names no resource                     500; the handler has not run
//	the resource's name is too long                   400; the handler has not run
//	body too large or broken (atomic)                 413 or 400; the mark is unchanged
//	holder paused while it sends its body (atomic)    newer tokens are accepted meanwhile
//	overtaken after the check (not atomic)            the handler runs; its store refuses, Error answers 412
//	overtaken after the check (atomic)                impossible: the newer token waits for the handler
//	client gone while its request waits (atomic)      503; the handler has not run
//	http.TimeoutHandler inside (atomic)               500; the handler has not run
//	reader overtaken by a newer writer                its handler runs, and must check when it has read
//	HEAD of a stale reader                            412 without a body: ReadError returns nil
//	cache between client and server                   keeps answers apart by Fencing-Read-Token; no-store for a claim
//	the handler leaves work running (atomic)          its context has ended; it may still write
//	the handler panics (atomic)                       as without the middleware; the mark stays raised
//	redirect to another host                          sent without the token
//	header set by the caller, same as the context     sent once
//	header set by the caller, another token           not sent: fence.ErrInvalidToken
//	the other header set by the caller                not sent: fence.ErrInvalidToken
//	other 412, for example of If-Match                ReadError returns nil; the body can be read
package httpfence
