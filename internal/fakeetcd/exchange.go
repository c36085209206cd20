package fakeetcd

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/internal/scope"
)

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
