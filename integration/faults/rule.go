package faults

import (
	"context"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Full gRPC methods of etcd, for [Rule.Method] and the counters.
const (
	Range          = etcdserverpb.KV_Range_FullMethodName
	Put            = etcdserverpb.KV_Put_FullMethodName
	Txn            = etcdserverpb.KV_Txn_FullMethodName
	Watch          = etcdserverpb.Watch_Watch_FullMethodName // a stream
	LeaseGrant     = etcdserverpb.Lease_LeaseGrant_FullMethodName
	LeaseRevoke    = etcdserverpb.Lease_LeaseRevoke_FullMethodName
	LeaseKeepAlive = etcdserverpb.Lease_LeaseKeepAlive_FullMethodName // a stream
)

// Fault is what happens to a message.
type Fault int

const (
	// LoseRequest never sends the request.
	LoseRequest Fault = iota + 1
	// LoseAnswer sends the request. When the server has executed it and answered, the answer is dropped. An error as the
	// answer gets through and does not count.
	LoseAnswer
	// DelayRequest sends the request later, unless the caller gives up first.
	DelayRequest
	// DelayAnswer passes the answer to the caller later. If the caller gives up first, the answer is lost. An error as the
	// answer gets through at once and does not count.
	DelayAnswer
	// LateRequest looks like LoseRequest to the caller, but the request reaches the server later, like one that was stuck
	// in the network. For unary methods only.
	LateRequest
	// RepeatRequest sends the request at once and a second copy later, like a hedged request whose first copy was
	// answered. For unary methods only.
	RepeatRequest
)

// Rule selects messages and the fault that they meet.
type Rule struct {
	// Fault is required.
	Fault Fault
	// Method is the full gRPC method, for instance [Txn]. Empty: every method.
	Method string
	// Match, if set, limits the rule to messages for which it returns true. It receives the request, or for an answer of a
	// stream, which belongs to no single request, the answer.
	Match func(message any) bool
	// Times is how many messages meet the fault. Zero: all, until the rule is removed. The client's own retries count, and
	// so does each message of a stream.
	Times int
	// Silent makes the caller of a lost message wait until its context ends, as if the network dropped packets. Otherwise
	// the caller gets the code Unavailable at once, as if the connection broke. That breaks a stream, whose user gets the
	// code at the next receive. A silent loss on a stream affects only that message: later ones get through.
	Silent bool
	// Delay is the delay of a delayed, late or repeated message.
	Delay time.Duration
}

// Injection is an active rule.
type Injection struct {
	rule Rule
	in   *Interceptor
	hit  chan struct{} // closed at the first hit

	// Guarded by the mutex of in.
	left int // messages to which the rule still applies, if Times limits them
	hits int
}

// Remove ends the rule. Messages that it has delayed stay delayed. It may be called twice.
func (j *Injection) Remove() {
	j.in.mu.Lock()
	defer j.in.mu.Unlock()
	j.in.rules = slices.DeleteFunc(j.in.rules, func(other *Injection) bool { return other == j })
}

// Hits returns how many messages have met the fault.
func (j *Injection) Hits() int {
	j.in.mu.Lock()
	defer j.in.mu.Unlock()
	return j.hits
}

// Hit returns a channel that is closed once a message has met the fault. For [LoseAnswer] and [DelayAnswer] the server
// has executed the request by then.
func (j *Injection) Hit() <-chan struct{} { return j.hit }

// lost returns the error of a lost message: at once, or if the loss is silent when ctx ends.
func (j *Injection) lost(ctx context.Context, what string) error {
	if j.rule.Silent {
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-j.in.life.Done():
		}
	}
	return status.Error(codes.Unavailable, "faults: "+what+" lost")
}

// wait returns when a delayed message is due, or with an error if ctx ends first.
func (j *Injection) wait(ctx context.Context) error {
	select {
	case <-time.After(j.rule.Delay):
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-j.in.life.Done():
		return status.Error(codes.Unavailable, "faults: closed")
	}
}
