package faults

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Methods of etcd that tests meddle with, as full gRPC methods.
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
	// LoseAnswer sends the request and, when the server has done it and answered, keeps the answer from the caller. An
	// answer that is an error gets through and does not count.
	LoseAnswer
	// DelayRequest sends the request later. If the caller gives up before, it is not sent.
	DelayRequest
	// DelayAnswer gives the answer to the caller later. If the caller gives up before, the answer is lost. An answer that
	// is an error gets through at once and does not count.
	DelayAnswer
	// LateRequest is lost for the caller as by LoseRequest, but reaches the server later nevertheless, as a request does
	// that was stuck in a network. For unary methods only.
	LateRequest
	// RepeatRequest sends the request, and once more later, as one does that was sent in two copies of which the first
	// was answered. For unary methods only.
	RepeatRequest
)

// String returns the name of the constant.
func (f Fault) String() string {
	switch f {
	case LoseRequest:
		return "LoseRequest"
	case LoseAnswer:
		return "LoseAnswer"
	case DelayRequest:
		return "DelayRequest"
	case DelayAnswer:
		return "DelayAnswer"
	case LateRequest:
		return "LateRequest"
	case RepeatRequest:
		return "RepeatRequest"
	default:
		return fmt.Sprintf("Fault(%d)", int(f))
	}
}

// stage is the moment at which a fault applies.
type stage int

const (
	beforeRequest stage = iota
	afterAnswer
)

func (f Fault) stage() stage {
	if f == LoseAnswer || f == DelayAnswer {
		return afterAnswer
	}
	return beforeRequest
}

// Rule says which messages meet which fault.
type Rule struct {
	// Fault is required.
	Fault Fault
	// Method is the full gRPC method, for instance [Txn]. Empty: every method.
	Method string
	// Match, if set, narrows the rule to messages for which it returns true. It is given the request; for an answer of a
	// stream, which has no one request, the answer.
	Match func(message any) bool
	// Times is how many messages meet the fault. Zero: all, until the rule is removed. What the client's own retries send
	// counts, and each message of a stream counts.
	Times int
	// Silent makes the caller of a lost message wait until its context ends, as it does when a network swallows things.
	// Otherwise it gets the code Unavailable at once, as it does when a connection breaks; a stream is broken by that, and
	// its user sees it at the next receive. On a stream, silence concerns the message alone: later ones get through.
	Silent bool
	// Code is what the caller of a lost message gets instead of Unavailable, if it is set. Upon Canceled and DeadlineExceeded
	// etcd's client sends a unary request again by itself, one that writes too.
	Code codes.Code
	// Delay is how late a delayed, late or repeated message is.
	Delay time.Duration
	// Until, if set, keeps a delayed, late or repeated message until it is closed, on top of Delay.
	Until <-chan struct{}
}

// Injection is a rule at work.
type Injection struct {
	rule Rule
	in   *Interceptor
	left int // messages that it still applies to, if the rule limits them; guarded by in.mu

	mu   sync.Mutex // guards hits
	hits int
	hit  chan struct{} // closed at the first hit
}

// Remove ends the rule. Messages that it delays stay delayed. It may be called twice.
func (j *Injection) Remove() { j.in.remove(j) }

// Hits returns how many messages have met the fault.
func (j *Injection) Hits() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.hits
}

// Hit returns a channel that is closed once a message has met the fault. For [LoseAnswer] and [DelayAnswer] the server has
// done by then what it was asked.
func (j *Injection) Hit() <-chan struct{} { return j.hit }

func (j *Injection) count() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.hits++
	if j.hits == 1 {
		close(j.hit)
	}
}

// lost is what the caller gets for a lost message, when it is to get it.
func (j *Injection) lost(ctx context.Context, what string) error {
	if j.rule.Silent {
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-j.in.closed:
		}
	}
	code := j.rule.Code
	if code == codes.OK {
		code = codes.Unavailable
	}
	return status.Error(code, "faults: "+what+" lost")
}

// wait returns when a delayed message is due, or with an error when ctx ends before.
func (j *Injection) wait(ctx context.Context) error {
	timer := time.NewTimer(j.rule.Delay)
	defer timer.Stop()
	due, until := timer.C, j.rule.Until
	for due != nil || until != nil {
		select {
		case <-due:
			due = nil
		case <-until:
			until = nil
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-j.in.closed:
			return status.Error(codes.Unavailable, "faults: closed")
		}
	}
	return nil
}
