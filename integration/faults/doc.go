// Package faults puts faults between an etcd client and its server.
//
// There are two tools. They can be used together.
//
//   - [Proxy] works on bytes. It delays, holds or cuts each direction of TCP connections, and knows nothing of what
//     they carry. It is for what a network does to all of a client's traffic.
//   - [Interceptor] works on gRPC messages. It loses or delays single requests and answers, picked by method and content.
//     It is for what must happen to one message, at one moment.
//
// Both count what they see and let a test wait for it, so that no test has to sleep and hope.
//
// # What a fault looks like
//
//	fault                                the server     the caller
//	Proxy.Requests.Hold                  gets nothing   waits until its context ends
//	Proxy.Answers.Hold                   does it        waits until its context ends
//	Proxy.Cut, for calls under way       does it or not gets Unavailable
//	Proxy.Refuse, for new calls          gets nothing   waits until its context ends
//	LoseRequest                          gets nothing   gets Unavailable, or waits if Silent
//	LoseAnswer                           does it        gets Unavailable, or waits if Silent
//	LateRequest                          does it later  gets Unavailable, or waits if Silent
//	RepeatRequest                        does it twice  notices nothing
//	DelayRequest, DelayAnswer            does it        waits
//
// # What etcd's client does then
//
// Without a connection the client's calls wait until there is one or their context ends: it sets WaitForReady.
//
// The client repeats calls that only read, and the grant and revocation of leases, when they fail with Unavailable; a call
// that may write (Put, DeleteRange, any Txn) it does not. An Interceptor is asked at each attempt, so a rule with Times
// 1 on [Range] is seen in the counters alone, and one without a limit fails the call after 100 attempts. KeepAliveOnce has
// a loop of its own, without a pause, that ends with its context.
//
// # Limits
//
// A proxied connection is two connections. What the proxy holds is acknowledged to the sender's kernel, so TCP's own
// time-outs do not see a black hole; gRPC's keepalive does. On a stream (Watch, LeaseKeepAlive) a delay by an Interceptor
// holds up the messages behind it, each of which then waits its own; a delay by a Proxy does not add up.
package faults
