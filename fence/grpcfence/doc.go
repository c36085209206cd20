// Package grpcfence carries a fencing token over gRPC and refuses stale ones at the server.
//
// # Scope
//
// At the client, [UnaryClient] and [StreamClient] send the token of a call's context in the metadata fencing-token, or
// that of a read lock in fencing-read-token, and beside it the name of the lock in fencing-lock. They convert a refusal
// back into the server's error, so that errors.Is(err, fence.ErrStale) works across the network and status.FromError
// still finds the status. At the server, the interceptors of [Server] parse the metadata, refuse stale tokens and those
// of another lock, add the token and the name to the context and give a status to the refusals that handlers return.
// [NewServer] creates them for any check, [NewAtomicServer] for resources in the server's process.
//
// A new holder claims before its first read. With a guard, any call of a method that writes is a claim. With a store,
// the handler calls the store's Claim.
//
// # The name of the lock
//
// A token belongs to a lock, see package fence. The client sends no name if the context carries none, or carries the
// token of several locks that were granted as one: choose one with [fence.ForLock]. In the metadata, "%" and two
// upper-case hex digits stand for each byte of the name except A-Z, a-z, 0-9 and "-._~/", as in the header of
// httpfence. It has at most 6,912 bytes there: servers of other languages may bound a call's metadata by 8 KiB. No
// other spelling is accepted.
//
// If the resource follows no lock, it accepts a token without a name. If it follows one, the check decides:
// [fence.Guard.AllowUnnamed], or the option of a store. Older clients send no name, and older servers ignore it. So
// while older and newer clients share a resource, set AllowUnnamed.
//
// # Readers
//
// The token of a read lock does not let a method write: a call of a method that writes and has only this token is
// refused as one without a token, also by a server that does not know the metadata. A reader's token is checked before
// the handler runs, so that no earlier writer writes while the handler reads: NewAtomicServer does this with its guard,
// NewServer with Options.CheckRead. With Options.EachMessage it is checked for each message too. A later writer is let
// in. So the handler checks the reader's token once more between its reads and its answer, with
// [fence.Guard.CheckReadContext] or in the transaction of its store.
//
// # Guarantee
//
//   - A call of a method that writes reaches the handler only with exactly one well-formed token that the check has
//     accepted. If the check fails, the call is refused.
//   - With NewAtomicServer, check and handler of a unary call are one step: once a newer token was accepted for a
//     resource, no handler of an older token is running or will run for it.
//   - A method that does not write raises no mark of writers. With the token of a read lock, and a check for it, a call
//     reaches the handler only if the check has accepted that.
//   - A check gets the name of the lock that was sent with the token, or none. It never gets a name of the server's own
//     context.
//
// # No guarantee
//
//   - NewServer only refuses early. A newer token can be accepted between its check and the handler's write, so the
//     store must compare the token in one step with the write.
//   - A stream is checked when it starts, and with Options.EachMessage also with each message. The store must refuse
//     stale writes between two checks and after the last.
//   - A gateway or proxy that drops a reader's token makes its call one without a token: it is served without a check
//     and is no claim, and the client cannot tell.
//   - The marks of a guard are in the process's memory; see [fence.Guard.Marks].
//   - A client that got UNAVAILABLE or DEADLINE_EXCEEDED does not know whether its call has written.
//   - A token is not a credential. A client can send the largest token and lock all others out of the resource:
//     authenticate calls in an earlier interceptor. Nor is the name of a lock: the first client that sends one decides
//     which lock the resource follows. A server that knows the lock can set it before, with [fence.Guard.LoadLocks].
//
// # Failures
//
// Each refusal has the detail google.rpc.ErrorInfo with [Domain] and the reason in this table.
//
//	what happens                                      result
//	token older than a mark                           FAILED_PRECONDITION, ReasonStale; the handler has not run
//	token of another lock than the resource follows   FAILED_PRECONDITION, ReasonOtherLock; the handler has not run
//	token without a name, resource follows a lock     FAILED_PRECONDITION, ReasonOtherLock, unless the check accepts it
//	token missing in a call that writes               FAILED_PRECONDITION, ReasonMissing
//	only a read lock's token in one that writes       FAILED_PRECONDITION, ReasonMissing
//	token malformed, empty, or several values         INVALID_ARGUMENT, ReasonInvalid, also in calls that only read
//	both of the metadata                              INVALID_ARGUMENT, ReasonInvalid
//	name malformed, several, or without a token       INVALID_ARGUMENT, ReasonInvalid, also in calls that only read
//	the check fails for another reason                UNAVAILABLE, or the status that its error has
//	the call names no resource                        INTERNAL
//	the resource's name is too long                   INVALID_ARGUMENT
//	the context ends while it waits (atomic, unary)   CANCELLED or DEADLINE_EXCEEDED; the handler has not run
//	overtaken after the check (not atomic)            the handler runs; its store's refusal becomes ReasonStale
//	overtaken after the check (atomic, unary)         impossible: the newer token waits for the handler
//	overtaken while a stream is open                  with EachMessage: ReasonStale at the next message received
//	reader overtaken by a newer writer                its handler runs, and must check when it has read
//	the handler panics (atomic)                       as without the interceptor; the mark stays raised
//	metadata set by the caller, same as the context   sent once
//	metadata set by the caller, another token         not sent: INVALID_ARGUMENT, fence.ErrInvalidToken
//	the other metadata set by the caller              not sent: INVALID_ARGUMENT, fence.ErrInvalidToken
//	fencing-lock set by the caller, not the context's not sent: INVALID_ARGUMENT, fence.ErrInvalidToken
//	the context's name is refused by fence.CheckLock  not sent: INVALID_ARGUMENT, fence.ErrInvalidToken
package grpcfence
