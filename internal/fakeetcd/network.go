package fakeetcd

import (
	"context"
	"errors"
	"slices"
	"time"
	_ "unsafe" // for go:linkname

	_ "go.etcd.io/etcd/client/v3" // has the variable, and sets it before init below
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/internal/scope"
)

// Method is a kind of request.
type Method uint8

// The methods. Each Send on a keep-alive stream is one KeepAliveOnce, and each creation of a watch, the client's own
// resumptions included, is one Watch.
const (
	Any Method = iota // every method except WatchEvents
	Get
	Put
	Delete
	Txn
	Compact
	Grant
	KeepAliveOnce
	Revoke
	TimeToLive
	Watch
	WatchEvents // events sent to an existing watch: no request, never recorded; only Match, Times, After and OnAnswer apply
)

var methodNames = [...]string{
	"Any", "Get", "Put", "Delete", "Txn", "Compact", "Grant", "KeepAliveOnce", "Revoke", "TimeToLive", "Watch", "WatchEvents",
}

// String returns the constant's name.
func (m Method) String() string { return methodNames[m] }

// Call is the record of one request.
type Call struct {
	Client   *Client
	Method   Method
	Endpoint string    // of the keep-alive stream that carries the request; empty for the client's own connection
	Request  any       // the protobuf request, such as *pb.TxnRequest; for WatchEvents the response. Not to be changed
	Sent     time.Time // when the client sent it
	Answered time.Time // when the answer or an error reached a caller that still waited; zero: it has not
	Err      error     // the gRPC error that was answered
}

// Message is one of the two messages of a call.
type Message uint8

// The messages that a fault can lose.
const (
	None Message = iota
	Request
	Answer
)

// ErrUnavailable is what a client sees when its connection breaks.
var ErrUnavailable = status.Error(codes.Unavailable, "transport is closing")

// Fault says what the network does to a call. The zero value matches every call and does nothing to it.
type Fault struct {
	Match func(Call) bool // selects the calls; nil: all of the method. It must not call the server or a client
	Times int             // the number of calls; 0: every one until the fault is removed

	Before time.Duration   // how long the request is under way before the server acts
	Until  <-chan struct{} // after Before, the request is held until this channel is closed; nil: it is not held
	After  time.Duration   // how long the answer is under way

	// Late lets the request outlive its caller: the server acts on it, once Before, Until and a cut are over, even
	// if the caller's context has ended or its client is closed. Otherwise a request under way ends with its caller.
	Late bool

	// Twice makes the request reach the server a second time, right after the first. The caller gets the second
	// answer, as behind a proxy that repeats requests. It must not be used for Watch, whose request is part of a
	// stream.
	Twice bool

	// Lose loses one of the messages. With Answer the server has acted. The caller then waits until its
	// context ends, or gets Err: after Before for a lost request, after After for a lost answer. A lost answer to a Watch
	// ends its stream, by default with ErrUnavailable: nothing can follow it on the same connection.
	Lose Message
	Err  error // a gRPC status error, such as ErrUnavailable; without Lose it means that the request is lost

	// OnRequest, if not nil, is called when Before and Until are over, and OnAnswer when the server has acted. The
	// call goes on when they return; they may call the server and the client. For WatchEvents only OnAnswer is
	// called, when the server has sent the events; their delivery does not wait for it.
	OnRequest, OnAnswer func()
}

// retryPause stands for the backoff of the real client, which is 25 ms plus or minus a tenth. It divides no round
// timeout, so a call that is retried until its deadline does not fail at the very instant of the deadline.
const retryPause = 23 * time.Millisecond

// on adapts a fault to the method of the call that it hits.
func (f Fault) on(m Method) Fault {
	if f.Err != nil && f.Lose == None {
		f.Lose = Request
	}
	if m == Watch && f.Lose == Answer && f.Err == nil {
		f.Err = ErrUnavailable
	}
	if f.Err != nil && (m == KeepAliveOnce || m == Watch) && f.Before+f.After < retryPause {
		if f.Lose == Request {
			f.Before = retryPause
		} else {
			f.After = retryPause
		}
	}
	return f
}

type rule struct {
	method Method
	fault  Fault
	left   int // calls, for a fault with Times
}

func (r *rule) matches(c Call) bool {
	if r.method != c.Method && (r.method != Any || c.Method == WatchEvents) {
		return false
	}
	return r.fault.Match == nil || r.fault.Match(c)
}

// Inject makes the network do f to the client's calls of method m, and returns a function that removes f again. A call
// meets at most one fault: the first one injected with Times, or else the last one injected without Times.
func (c *Client) Inject(m Method, f Fault) (remove func()) {
	c.srv.mu.Lock()
	defer c.srv.mu.Unlock()
	r := &rule{method: m, fault: f, left: f.Times}
	c.rules = append(c.rules, r)
	return func() {
		c.srv.mu.Lock()
		defer c.srv.mu.Unlock()
		c.rules = slices.DeleteFunc(c.rules, func(o *rule) bool { return o == r })
	}
}

// Reset removes every fault. Calls under way keep theirs, and a cut goes on.
func (c *Client) Reset() {
	c.srv.mu.Lock()
	defer c.srv.mu.Unlock()
	c.rules = nil
}

// pick finds the fault for a call and counts it. The caller holds the server's mutex.
func (c *Client) pick(call Call) (Fault, bool) {
	for i, r := range c.rules {
		if r.fault.Times == 0 || !r.matches(call) {
			continue
		}
		r.left--
		if r.left == 0 {
			c.rules = slices.Delete(slices.Clone(c.rules), i, i+1)
		}
		return r.fault.on(call.Method), true
	}
	for _, r := range slices.Backward(c.rules) {
		if r.fault.Times == 0 && r.matches(call) {
			return r.fault.on(call.Method), true
		}
	}
	return Fault{}, false
}

// pendingError means that the server does not act on the request before until is closed.
type pendingError struct{ until <-chan struct{} }

func (*pendingError) Error() string { return "fakeetcd: the server does not act yet" }

// errClosing is gRPC's error after the client's Close.
var errClosing = status.Error(codes.Canceled, "grpc: the client connection is closing")

type outcome[T any] struct {
	msg *T
	err error
}

// exchange is one request on its way to the server and the answer on its way back.
type exchange[T any] struct {
	c       *Client
	call    *Call
	fault   Fault
	act     func(Fault) (*T, error) // what the server does
	deliver func(outcome[T])        // what the caller gets; never blocks
}

// transmit starts an exchange, with endpoint if that is not empty. It calls act and deliver with the server's mutex
// held: before it returns if nothing delays the exchange, otherwise in a goroutine of the server, which ends with
// ctx, the client or the server.
func transmit[T any](
	ctx context.Context, c *Client, endpoint string, m Method, req any, act func(Fault) (*T, error), deliver func(outcome[T]),
) {
	s := c.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	call := &Call{Client: c, Method: m, Endpoint: endpoint, Request: req, Sent: time.Now()}
	s.calls = append(s.calls, call)
	s.signal()
	x := &exchange[T]{c: c, call: call, act: act, deliver: deliver}
	if c.life.Err() != nil {
		x.answer(outcome[T]{err: errClosing})
		return
	}
	var faulty bool
	x.fault, faulty = c.pick(*call)
	if !faulty && !c.cut {
		o := x.serve()
		if _, pending := errors.AsType[*pendingError](o.err); !pending {
			x.answer(o)
			return
		}
	}
	s.wg.Go(func() { x.carry(ctx) })
}

func (x *exchange[T]) serve() outcome[T] {
	v, err := x.act(x.fault)
	if _, pending := errors.AsType[*pendingError](err); !pending {
		x.c.srv.signal()
	}
	if err == nil && x.c.edit != nil {
		x.c.edit(x.call.Method, v)
	}
	return outcome[T]{v, err}
}

func (x *exchange[T]) answer(o outcome[T]) {
	x.call.Answered, x.call.Err = time.Now(), o.err
	x.deliver(o)
	x.c.srv.signal()
}

// carry takes the request to the server and the answer back, step by step, with the faults in between.
func (x *exchange[T]) carry(ctx context.Context) {
	f := x.fault
	here, done := scope.Join(ctx, x.c.life)
	defer done()
	under := here
	if f.Late {
		under = x.c.srv.life
	}
	if !wait(under, f.Before, f.Until) {
		return
	}
	if f.OnRequest != nil {
		f.OnRequest()
	}
	if f.Lose == Request {
		x.fail(here)
		return
	}
	if !pass(under, x.c) {
		return
	}
	o, ok := x.reach(under)
	if ok && f.Twice {
		o, ok = x.reach(under)
	}
	if ok && f.OnAnswer != nil {
		f.OnAnswer()
	}
	if !ok || !wait(here, f.After, nil) {
		return
	}
	if f.Lose == Answer {
		x.fail(here)
		return
	}
	if !pass(here, x.c) {
		return
	}
	x.c.srv.mu.Lock()
	defer x.c.srv.mu.Unlock()
	x.answer(o)
}

// reach lets the server act, as soon as it is ready to.
func (x *exchange[T]) reach(under context.Context) (o outcome[T], ok bool) {
	for {
		x.c.srv.mu.Lock()
		o := x.serve()
		x.c.srv.mu.Unlock()
		pending, ok := errors.AsType[*pendingError](o.err)
		if !ok {
			return o, true
		}
		if !wait(under, 0, pending.until) {
			return o, false
		}
	}
}

// fail gives the caller the fault's error in place of a lost message, if it has one.
func (x *exchange[T]) fail(here context.Context) {
	if x.fault.Err == nil || here.Err() != nil {
		return
	}
	x.c.srv.mu.Lock()
	defer x.c.srv.mu.Unlock()
	x.answer(outcome[T]{err: x.fault.Err})
}

// wait blocks for d, and then until ch is closed, if it is not nil. It reports false if the life of the message ends first.
func wait(life context.Context, d time.Duration, ch <-chan struct{}) bool {
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-life.Done():
		}
	}
	if ch != nil {
		select {
		case <-ch:
		case <-life.Done():
		}
	}
	return life.Err() == nil
}

// pass waits until the client's link is not cut. It reports false if the life of the message ends first.
func pass(life context.Context, c *Client) bool {
	for {
		c.srv.mu.Lock()
		cut, restored := c.cut, c.restored
		c.srv.mu.Unlock()
		if !cut {
			return life.Err() == nil
		}
		if !wait(life, 0, restored) {
			return false
		}
	}
}
