// Package faults puts faults between an etcd client and its server.
//
// There are two tools. They can be used together.
//
//   - [Proxy] works on bytes. It delays, holds or cuts each direction of TCP connections, and does not know what they
//     carry. Use it for what a network does to all of a client's traffic.
//   - [Interceptor] works on gRPC messages. It loses or delays single requests and answers, chosen by method and
//     content. Use it for what must happen to one message, at one moment.
//
// Both count what they see, and a test can wait for a count instead of sleeping.
//
// # What a fault looks like
//
//	fault                                the server        the caller
//	Proxy.Requests.Hold                  gets nothing      waits until its context ends
//	Proxy.Answers.Hold                   executes it       waits until its context ends
//	Proxy.Cut, for calls under way       executes it, or   gets Unavailable
//	                                     does not
//	Proxy.Refuse, for new calls          gets nothing      waits until its context ends
//	LoseRequest                          gets nothing      gets Unavailable, or waits if Silent
//	LoseAnswer                           executes it       gets Unavailable, or waits if Silent
//	LateRequest                          executes it later gets Unavailable, or waits if Silent
//	RepeatRequest                        executes it twice notices nothing
//	DelayRequest, DelayAnswer            executes it       waits
//
// # How etcd's client reacts
//
// Without a connection the client's calls wait until there is one or their context ends, since it sets WaitForReady.
//
// If a call fails with Unavailable, the client retries it if it only reads, or grants or revokes a lease. It does not
// retry a call that may write (Put, DeleteRange, any Txn). Each attempt passes the Interceptor. So a rule with Times 1
// on [Range] shows in the counters only, and a rule without a limit fails the call after 100 attempts. KeepAliveOnce
// retries without a pause until its context ends.
//
// # Limits
//
// A proxied connection is two connections. The proxy's kernel acknowledges the bytes that the proxy holds, so TCP's own
// timeouts do not notice a black hole; gRPC's keepalive does. On a stream (Watch, LeaseKeepAlive) an Interceptor's
// delay of a message also delays the messages behind it, and their own delays come on top. Delays by a Proxy do not add
// up.
package faults
