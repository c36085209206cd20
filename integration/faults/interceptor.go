package faults

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Interceptor counts, loses and delays the messages of a client. It works below the client's own retries: each attempt
// is a message. It is safe for concurrent use, and may serve several clients.
type Interceptor struct {
	life context.Context //nolint:containedctx // its end ends all waiting
	wg   sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	rules    []*Injection
	sent     map[string]int
	answered map[string]int
	failed   map[error]int
	counted  chan struct{} // closed and replaced when a count changes
}

// NewInterceptor returns an interceptor without rules. When the test ends, it drops the messages that it delays.
func NewInterceptor(tb testing.TB) *Interceptor {
	tb.Helper()
	life, end := context.WithCancel(context.WithoutCancel(tb.Context())) // cleanups may still need it
	i := &Interceptor{
		life:     life,
		sent:     map[string]int{},
		answered: map[string]int{},
		failed:   map[error]int{},
		counted:  make(chan struct{}),
	}
	tb.Cleanup(func() {
		end()
		i.wg.Wait()
	})
	return i
}

// DialOptions returns the dial options that put the interceptor into a client.
func (i *Interceptor) DialOptions() []grpc.DialOption {
	// etcd's client sets its retries with the options that are not chained. gRPC calls those first, so chained
	// interceptors are nearest to the wire in any order of the options.
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(i.unary), grpc.WithChainStreamInterceptor(i.stream)}
}

// Inject activates a rule. If several rules fit a message at the same stage, before the request or after the answer,
// the first of them applies.
func (i *Interceptor) Inject(tb testing.TB, rule Rule) *Injection {
	tb.Helper()
	require.True(tb, LoseRequest <= rule.Fault && rule.Fault <= RepeatRequest, "faults: Rule.Fault is %d", rule.Fault)
	require.GreaterOrEqual(tb, rule.Times, 0, "faults: Rule.Times")
	j := &Injection{rule: rule, in: i, left: rule.Times, hit: make(chan struct{})}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.rules = append(i.rules, j)
	return j
}

// Sent returns the number of requests of a method that the client has tried to send: it includes lost and delayed
// requests and the client's own retries. For a stream it is the number of messages.
func (i *Interceptor) Sent(method string) int {
	n, _ := i.counts(i.sent, method)
	return n
}

// Answered returns the number of answers without an error that have arrived from the server, including those that were
// lost on the way to the caller. For a stream it is the number of messages.
func (i *Interceptor) Answered(method string) int {
	n, _ := i.counts(i.answered, method)
	return n
}

// Failed returns how many answers, except those on streams, were that error, one of package rpctypes.
func (i *Interceptor) Failed(err error) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.failed[err]
}

// AwaitAnswered waits until Answered returns n or more. If ctx ends first, it returns the cause.
func (i *Interceptor) AwaitAnswered(ctx context.Context, method string, n int) error {
	for {
		got, counted := i.counts(i.answered, method)
		if got >= n {
			return nil
		}
		select {
		case <-counted:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (i *Interceptor) counts(counts map[string]int, method string) (int, <-chan struct{}) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return counts[method], i.counted
}

func (i *Interceptor) count(counts map[string]int, method string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	counts[method]++
	close(i.counted)
	i.counted = make(chan struct{})
}

// take returns the rule that applies to a message, nil if there is none, and counts the hit.
func (i *Interceptor) take(answered bool, method string, message any, stream bool) *Injection {
	i.mu.Lock()
	defer i.mu.Unlock()
	for n, j := range i.rules {
		r := j.rule
		if answered != (r.Fault == LoseAnswer || r.Fault == DelayAnswer) || (r.Method != "" && r.Method != method) || (stream && r.Fault >= LateRequest) {
			continue
		}
		if r.Match != nil && !r.Match(message) {
			continue
		}
		if r.Times > 0 {
			if j.left--; j.left == 0 {
				i.rules = slices.Delete(i.rules, n, n+1)
			}
		}
		if j.hits++; j.hits == 1 {
			close(j.hit)
		}
		return j
	}
	return nil
}

func (i *Interceptor) unary(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	i.count(i.sent, method)
	if j := i.take(false, method, req, false); j != nil {
		if j.rule.Fault >= LateRequest {
			i.late(ctx, j, method, req, reply, cc, invoke)
		}
		switch j.rule.Fault {
		case DelayRequest:
			if err := j.wait(ctx); err != nil {
				return err
			}
		case LoseRequest, LateRequest:
			return j.lost(ctx, "request")
		}
	}

	if err := invoke(ctx, method, req, reply, cc, opts...); err != nil {
		if known, ok := errors.AsType[rpctypes.EtcdError](rpctypes.Error(err)); ok {
			i.mu.Lock()
			defer i.mu.Unlock()
			i.failed[known]++
		}
		return err
	}
	i.count(i.answered, method)
	if j := i.take(true, method, req, false); j != nil {
		if j.rule.Fault == LoseAnswer {
			return j.lost(ctx, "answer")
		}
		return j.wait(ctx)
	}
	return nil
}

// late sends a request when it is due, even if its caller has given up.
func (i *Interceptor) late(
	ctx context.Context, j *Injection, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
) {
	// The caller may reuse its messages as soon as it has its error, so they are copied. Its call options are left out,
	// since some point to the caller's variables. WaitForReady is set because etcd's client sets it for every call.
	req = proto.Clone(req.(proto.Message))
	reply = reply.(proto.Message).ProtoReflect().New().Interface()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	i.wg.Go(func() {
		defer cancel()
		if j.wait(ctx) != nil {
			return
		}
		defer context.AfterFunc(i.life, cancel)() // the end of the interceptor's life, not of the caller
		if invoke(ctx, method, req, reply, cc, grpc.WaitForReady(true)) == nil {
			i.count(i.answered, method)
		}
	})
}

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

func (i *Interceptor) stream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	ctx, end := context.WithCancelCause(ctx)
	inner, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil {
		end(nil)
		return nil, err
	}
	return &clientStream{inner, i, method, ctx, end}, nil
}

// clientStream is a stream whose messages meet faults.
type clientStream struct {
	grpc.ClientStream

	in     *Interceptor
	method string
	life   context.Context         //nolint:containedctx // the stream's
	end    context.CancelCauseFunc // a fault breaks the stream by it; its user gets the cause from RecvMsg
}

// SendMsg sends a request.
func (s *clientStream) SendMsg(msg any) error {
	if s.brokenBy() != nil {
		// As in gRPC, SendMsg returns io.EOF and RecvMsg returns the reason.
		return io.EOF
	}
	s.in.count(s.in.sent, s.method)
	if j := s.in.take(false, s.method, msg, true); j != nil {
		if j.rule.Fault == LoseRequest {
			// gRPC's SendMsg succeeds once the connection has taken the message, so it does not see the loss.
			if !j.rule.Silent {
				s.end(j.lost(s.Context(), "request"))
			}
			return nil
		}
		if err := j.wait(s.Context()); err != nil {
			return err
		}
	}
	return s.ClientStream.SendMsg(msg)
}

// RecvMsg waits for the next answer that is not lost.
func (s *clientStream) RecvMsg(msg any) error {
	for {
		if err := s.ClientStream.RecvMsg(msg); err != nil {
			// The stream has ended. gRPC frees its resources when its context ends.
			s.end(nil)
			if broken := s.brokenBy(); broken != nil {
				return broken
			}
			return err
		}
		s.in.count(s.in.answered, s.method)
		j := s.in.take(true, s.method, msg, true)
		if j == nil {
			return nil
		}
		switch {
		case j.rule.Fault == DelayAnswer:
			return j.wait(s.Context())
		case !j.rule.Silent:
			err := j.lost(s.Context(), "answer")
			s.end(err)
			return err
		}
	}
}

// brokenBy returns the error of the fault that has broken the stream, nil if none has.
func (s *clientStream) brokenBy() error {
	if err := context.Cause(s.life); status.Code(err) == codes.Unavailable {
		return err
	}
	return nil
}
