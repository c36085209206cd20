// Package grpcfence carries a fencing token over gRPC and refuses stale ones at the server.
//
// # Scope
//
// At the client, [UnaryClient] and [StreamClient] send the token of a call's context in the metadata fencing-token, and
// turn a refusal back into the error it was, so that errors.Is(err, fence.ErrStale) holds across the wire, and
// status.FromError still finds the status. At the server, the interceptors of [Server] parse the metadata, refuse what
// is stale, put the token into the context and give the refusals that handlers return their status: made by
// [NewServer] for any check, or by [NewAtomicServer] for resources that live in the server's process.
//
// A claim, which a new holder makes before its first read, is with a guard a call that writes nothing: any method that
// needs a token. With a store the handler makes the store's claim.
//
// # Guarantee
//
//   - A call of a method that writes does not reach the handler without exactly one well-formed token, nor unless the
//     check accepted it. A check that fails refuses.
//   - At a server of NewAtomicServer, check and handler of a unary call are one step: once a newer token has been
//     accepted for a resource, no handler of an older one is running or will run for it.
//   - A method that does not write raises no mark.
//
// # No guarantee
//
//   - A server of NewServer refuses early; it does not decide. Between its check and the handler's write there may be
//     a pause, and a newer token: the store has to compare the token in one step with the write.
//   - A stream is checked when it starts, and with Options.EachMessage again with each message. What its handler writes
//     between two checks, or after the last, is for the store to refuse.
//   - A client that got UNAVAILABLE or DEADLINE_EXCEEDED does not know whether it has written.
//   - A token is no credential. Whoever reaches the server can send the largest one and lock the others out of the
//     resource: authenticate in an interceptor before this one.
//
// # Failures
//
// Each refusal has the detail google.rpc.ErrorInfo, with [Domain] and the reason given here.
//
//	what happens                                      what becomes of it
//	token older than the newest seen                  FAILED_PRECONDITION, ReasonStale; the handler has not run
//	no token where one is needed                      FAILED_PRECONDITION, ReasonMissing
//	token malformed, empty, or several values         INVALID_ARGUMENT, ReasonInvalid, for readers too
//	the check fails for another reason                UNAVAILABLE, or the status that its error has
//	the call names no resource                        INTERNAL
//	overtaken after the check (not atomic)            the handler runs; its store's refusal becomes ReasonStale
//	overtaken after the check (atomic, unary)         cannot be: the newer token waits for the handler
//	overtaken while a stream is open                  with EachMessage: ReasonStale at the next message received
//	the handler panics (atomic)                       as without the interceptor; the mark stays raised
//	metadata set by the caller, same as the context   sent once
//	metadata set by the caller, another token         not sent: INVALID_ARGUMENT
package grpcfence
