package etcd

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Attempt is one try at a request, or at a few that belong together. It is its function's own: only [Send] uses goroutines.
//
// The client takes its endpoints in turn, for all its requests alike. A request that is sent again may therefore meet the
// endpoint at which it failed again, and what else the client does at regular times can see to it that it always does. So an
// attempt after one that failed, and was not refused, sends what it asks more than once, at the same time, and takes the first
// answer. For the server that is nothing new: it is an attempt whose answer is lost, and another one.
type Attempt struct {
	conn         *Conn
	caller, life context.Context //nolint:containedctx // it ends with either
	bound        time.Duration   // and after that; 0: it has no bound
	copies       int             // requests for each one, at least 1
	pause        time.Duration   // between one and the next, while none is answered

	made   context.Context //nolint:containedctx // of the three; nil before its first use, as are those below
	cancel context.CancelFunc
	timer  *time.Timer
	stop   func() bool
	single once // the context of a request that is sent once
}

// Once is an attempt of its own, which is bounded by ctx alone.
func (c *Conn) Once(ctx context.Context) *Attempt {
	return &Attempt{conn: c, caller: ctx, life: ctx, copies: 1}
}

// Beside has the attempt send as many requests for each one as there are endpoints, each but the first only if there is no
// answer after a further pause.
func (a *Attempt) Beside(pause time.Duration) *Attempt {
	a.copies, a.pause = a.conn.endpoints(), pause
	return a
}

// Context is the attempt's. An attempt that travels with others', see [Line], does without one: it is made on its first use.
func (a *Attempt) Context() context.Context {
	switch {
	case a.made != nil:
	case a.bound == 0 && a.life == a.caller:
		return a.caller
	default:
		a.made, a.cancel = context.WithCancel(a.caller)
		if a.life != a.caller {
			a.stop = context.AfterFunc(a.life, a.cancel)
		}
		// Not a deadline: gRPC would send that along, and both sides would keep time for each request.
		a.timer = time.AfterFunc(a.bound, a.cancel)
	}
	return a.made
}

func (a *Attempt) close() {
	if a.made == nil {
		return
	}
	a.cancel()
	a.timer.Stop()
	if a.stop != nil {
		a.stop()
	}
}

// Get is [Send] of the client's Get.
func (a *Attempt) Get(key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return Send(a, func(ctx context.Context) (*clientv3.GetResponse, error) { return a.conn.Client.Get(ctx, key, opts...) })
}

// Txn is [Send] of a transaction.
func (a *Attempt) Txn(cmps []clientv3.Cmp, then, or []clientv3.Op) (*clientv3.TxnResponse, error) {
	if a.copies == 1 { // without an allocation
		if a.single.Context == nil {
			a.single.Context = a.Context() //nolint:fatcontext // it is the same in all
		}
		return commit(&a.single, a.conn.Client, cmps, then, or)
	}
	return Send(a, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return commit(&once{ctx}, a.conn.Client, cmps, then, or) //nolint:contextcheck // once is ctx
	})
}

// commit sends a transaction once. The client's own interceptor would send it again after Canceled or DeadlineExceeded of the
// server or of a proxy that shuts down, and give the answer to the second as that of the first.
//
// A transaction without operations is a serializable one for etcd: the member that is asked compares what it has applied by
// then, and may lag. So one that only compares is given a read, which makes it linearizable.
func commit(ctx *once, client *clientv3.Client, cmps []clientv3.Cmp, then, or []clientv3.Op) (*clientv3.TxnResponse, error) {
	if len(then)+len(or) == 0 && len(cmps) > 0 {
		or = []clientv3.Op{clientv3.OpGet(string(cmps[0].KeyBytes()), clientv3.WithCountOnly())}
	}
	return client.Txn(ctx).If(cmps...).Then(then...).Else(or...).Commit()
}

// once has a request sent once. The client's interceptor, and KeepAliveOnce, send it again after some failures, without a
// pause, for as long as Err is nil. Done is the context's, so that all contexts made of it work as ever.
type once struct {
	context.Context //nolint:containedctx // it is the context
}

func (c once) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	return errOnce
}

var errOnce = fmt.Errorf("etcd: one attempt only: %w", context.Canceled)

// Send sends a request in as many copies as the attempt has. It returns the first answer, or a failure that another attempt
// does not mend. If all fail otherwise, it is one that leaves open whether the request was carried out, if there is one. A
// refusal counts as one only if every copy was refused. It returns when all have ended.
func Send[T any](a *Attempt, send func(context.Context) (T, error)) (T, error) {
	if a.copies <= 1 {
		return send(a.Context())
	}
	ctx, cancel := context.WithCancel(a.Context())
	defer cancel()
	type outcome struct {
		answer T
		err    error
	}
	outcomes := make(chan outcome)
	left, underWay := a.copies, 0
	next := time.NewTimer(a.pause)
	defer next.Stop()
	another := func() {
		left--
		underWay++
		go func() {
			answer, err := send(ctx)
			outcomes <- outcome{answer, err}
		}()
		next.Reset(a.pause)
	}
	another()
	best, unknown := outcome{err: errNone}, false
	for underWay > 0 {
		select {
		case <-next.C:
			if left > 0 && !final(best.err) {
				another()
			}
		case o := <-outcomes:
			underWay--
			unknown = unknown || o.err != nil && !Refused(o.err)
			if !final(best.err) && (final(o.err) || Refused(best.err)) {
				best = o
			}
			if final(best.err) {
				cancel() // the others
			}
		}
	}
	if best.err != nil && unknown {
		best.err = Repeated(best.err)
	}
	return best.answer, best.err
}

// errNone stands for no outcome yet: any other is better.
var errNone = fmt.Errorf("%w: %w", ErrNotSent, context.Canceled)

// final reports whether err, which may be nil, is how the request ends.
func final(err error) bool { return err == nil || !Transient(err) }
