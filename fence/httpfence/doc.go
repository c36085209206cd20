// Package httpfence carries a fencing token over HTTP and refuses stale ones at the server.
//
// # Scope
//
// At the client, [Transport] sends the token of a request's context in the header Fencing-Token, or that of a read lock
// in Fencing-Read-Token, and beside it the name of the lock in Fencing-Lock. [ReadError] converts a refusal back into
// the server's error, so that errors.Is(err, fence.ErrStale) works across the network. At the server a middleware
// parses the headers, refuses stale tokens and those of another lock, and adds the token and the name to the request's
// context. [NewMiddleware] creates one for any check, [NewAtomicMiddleware] one for a resource in the server's process.
// [Error] writes the refusal of a handler's store as the response.
//
// A new holder claims before its first read. With a guard, any request that the middleware counts as a write is a
// claim. With a store, the handler calls the store's Claim.
//
// # The name of the lock
//
// A token belongs to a lock, see package fence. Transport sends no name if the context carries none, or carries the
// token of several locks that were granted as one: choose one with [fence.ForLock]. In the header, "%" and two
// upper-case hex digits stand for each byte of the name except A-Z, a-z, 0-9 and "-._~/", so that it has at most 6,912
// bytes. No other spelling is accepted:
//
//	Fencing-Token: 54
//	Fencing-Lock: /locks/orders%20of%20today
//
// If the resource follows no lock, it accepts a token without a name. If it follows one, the check decides:
// [fence.Guard.AllowUnnamed], or the option of a store. Older clients send no name, and older servers ignore it. So
// while older and newer clients share a resource, set AllowUnnamed.
//
// # Readers
//
// The token of a read lock does not let a request write: a request that writes and has only this token is refused as
// one without a token, also by a server that does not know the header. A reader's token is checked before the handler
// runs, so that no earlier writer writes while the handler reads: NewAtomicMiddleware does this with its guard,
// NewMiddleware with Options.CheckRead. A later writer is let in. So the handler checks the reader's token once more
// between its reads and its answer, with [fence.Guard.CheckReadContext] or in the transaction of its store.
//
// # Guarantee
//
//   - A request that writes reaches the handler only with exactly one well-formed token that the check has accepted. If
//     the check fails, the request is refused.
//   - Behind NewAtomicMiddleware check and handler are one step: once a newer token was accepted for a resource, no
//     handler of an older token is running or will run for it. A handler must be done when it returns. So write
//     http.TimeoutHandler(fenced(handler), …). The middleware refuses fenced(http.TimeoutHandler(handler, …)).
//   - A request that only reads raises no mark of writers. With the token of a read lock, and a check for it, it
//     reaches the handler only if the check has accepted that.
//   - Transport sends the token of the context and the name of its lock to its own hosts only, also after redirects,
//     and does not change the caller's request.
//   - A check gets the name of the lock that was sent with the token, or none. It never gets a name of the server's own
//     context.
//
// # No guarantee
//
//   - NewMiddleware only refuses early. A newer token can be accepted between its check and the handler's write, so the
//     store must compare the token in one step with the write.
//   - A client without an answer does not know whether its request has written.
//   - A token is not a credential. A client can send the largest token and lock all others out of the resource:
//     authenticate requests before the middleware. Nor is the name of a lock: the first client that sends one decides
//     which lock the resource follows. A server that knows the lock can set it before, with [fence.Guard.LoadLocks].
//   - The request's context carries its token and the name to everything that the handler calls. A Transport there
//     sends them to its own hosts only.
//   - A proxy that passes on only the headers that it knows drops the name: the token comes without one. It drops a
//     reader's token too: the request is then served without a check and is no claim, and the client cannot tell.
//   - The marks of a guard are in the process's memory: after a restart, stale tokens are accepted until the holder
//     claims again, unless the server saves and loads the marks; see [fence.Guard.Marks].
//
// # Failures
//
//	what happens                                      result
//	token older than a mark                           412, TypeStale; the handler has not run
//	token of another lock than the resource follows   409, TypeOtherLock; the handler has not run
//	token without a name, resource follows a lock     409, TypeOtherLock, unless the check accepts it
//	token missing in a request that writes            428, TypeMissing
//	only a read lock's token in one that writes       428, TypeMissing
//	token malformed, empty, or several values         400, TypeInvalid, also in requests that only read
//	both headers                                      400, TypeInvalid
//	name malformed, several, or without a token       400, TypeInvalid, also in requests that only read
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
//	HEAD of a reader that is refused                  412 or 409 without a body: ReadError returns nil
//	cache between client and server                   keeps answers to reads apart by the three headers; set
//	                                                  no-store if a GET is counted as a write
//	the handler leaves work running (atomic)          its context has ended; it may still write
//	the handler panics (atomic)                       as without the middleware; the mark stays raised
//	redirect to another host                          sent without the token and the name
//	header set by the caller, same as the context     sent once
//	header set by the caller, another token           not sent: fence.ErrInvalidToken
//	the other header set by the caller                not sent: fence.ErrInvalidToken
//	Fencing-Lock set by the caller, not the context's not sent: fence.ErrInvalidToken
//	the context's name is refused by fence.CheckLock  not sent: fence.ErrInvalidToken
//	other 412 or 409, for example of If-Match         ReadError returns nil; the body can be read
package httpfence
