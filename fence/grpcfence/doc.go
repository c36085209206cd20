// Package grpcfence carries a fencing token over gRPC and refuses stale ones at the server.
//
// # Scope
//
// At the client, [UnaryClient] and [StreamClient] send the token of a call's context in the metadata fencing-token, or that of
// a read lock in fencing-read-token. They convert a refusal back into the server's error, so that errors.Is(err,
// fence.ErrStale) works across the network and status.FromError still finds the status. At the server, the interceptors of
// [Server] parse the metadata, refuse stale tokens, add the token to the context and give a status to the refusals that
// handlers return. [NewServer] creates them for any check, [NewAtomicServer] for resources in the server's process.
//
// A new holder claims before its first read. With a guard, any call of a method that writes is a claim. With a store, the
// handler calls the store's Claim.
//
// # Readers
//
// The token of a read lock does not let a method write: with it alone such a call has no token, here and at a server that does
// not know the metadata. A call of a method that does not write is checked before its handler runs, so that no writer that held
// the lock before writes while the handler reads: NewAtomicServer does this with its guard, NewServer with Options.CheckRead,
// with Options.EachMessage for each message too. A writer that comes later is let in. So a handler that reads for a reader
// checks its token once more when it has read, with [fence.Guard.CheckRead] or in the transaction of its store, and before it
// answers.
//
// # Guarantee
//
//   - A call of a method that writes reaches the handler only with exactly one well-formed token that the check has accepted.
//     If the check fails, the call is refused.
//   - With NewAtomicServer, check and handler of a unary call are one step: once a newer token was accepted for a resource, no
//     handler of an older token is running or will run for it.
//   - A method that does not write raises no mark of writers. With the token of a read lock, and a check for it, a call
//     reaches the handler only if the check has accepted that.
//
// # No guarantee
//
//   - NewServer only refuses early. A newer token can be accepted between its check and the handler's write, so the store must
//     compare the token in one step with the write.
//   - A stream is checked when it starts, and with Options.EachMessage also with each message. The store must refuse stale
//     writes between two checks and after the last.
//   - A client that got UNAVAILABLE or DEADLINE_EXCEEDED does not know whether its call has written.
//   - A token is not a credential. A client can send the largest token and lock all others out of the resource: authenticate
//     calls in an earlier interceptor.
//
// # Failures
//
// Each refusal has the detail google.rpc.ErrorInfo with [Domain] and the reason in this table.
//
//	what happens                                      result
//	token older than a mark                           FAILED_PRECONDITION, ReasonStale; the handler has not run
//	token missing in a call that writes               FAILED_PRECONDITION, ReasonMissing
//	only that of a read lock in one that writes       FAILED_PRECONDITION, ReasonMissing
//	token malformed, empty, or several values         INVALID_ARGUMENT, ReasonInvalid, also in calls that only read
//	both of the metadata                              INVALID_ARGUMENT, ReasonInvalid
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
package grpcfence
