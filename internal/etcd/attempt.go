package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Attempt is one try at a request, or at a few requests that belong together. It must not be used by several
// goroutines or after its function has returned.
//
// The client takes its endpoints in turn, for all its requests alike. A retry may therefore meet the endpoint at
// which the request failed before; other requests of the client at regular intervals can make that happen every time.
// So after an attempt whose outcome is unknown, the next one sends each request in several copies at once, and takes
// the first answer. The server sees nothing new: copies look like an attempt whose answer was lost, and its retry.
type Attempt struct {
	conn         *Conn
	caller, life context.Context //nolint:containedctx // the attempt ends with either
	bound        time.Duration   // and after this time; 0: no limit
	copies       int             // of each request, at least 1
	pause        time.Duration   // between one copy and the next, while there is no answer

	made   context.Context //nolint:containedctx // of caller, life and bound; nil before its first use, as are those below
	cancel context.CancelFunc
	timer  *time.Timer
	stop   func() bool
	single once // the context of a request that is sent once
}

// Once returns a single attempt that is bounded by ctx alone.
func (c *Conn) Once(ctx context.Context) *Attempt {
	return &Attempt{conn: c, caller: ctx, life: ctx, copies: 1}
}

// Beside hedges the attempt: each request is sent in up to one copy per endpoint, a further copy after each pause
// without an answer.
func (a *Attempt) Beside(pause time.Duration) *Attempt {
	a.copies, a.pause = a.conn.endpoints(), pause
	return a
}

// Context returns the context of the attempt. It is made on first use: a transaction that is sent in a batch, see
// [Line], does without one.
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
		// A timer and no deadline: gRPC would send a deadline to the server, and both sides would run a timer for
		// each request.
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

// Get sends the client's Get; see [Send].
func (a *Attempt) Get(key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return Send(a, func(ctx context.Context) (*clientv3.GetResponse, error) { return a.conn.Client.Get(ctx, key, opts...) })
}

// Txn sends a transaction; see [Send].
func (a *Attempt) Txn(cmps []clientv3.Cmp, then, or []clientv3.Op) (*clientv3.TxnResponse, error) {
	return Send(a, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return commit(&once{ctx}, a.conn.Client, cmps, then, or)
	})
}

// Commit sends a transaction once through any KV. An error that matches [context.Canceled] means that ctx has ended.
func Commit(ctx context.Context, kv clientv3.KV, cmps []clientv3.Cmp, then, or []clientv3.Op) (*clientv3.TxnResponse, error) {
	resp, err := commit(&once{ctx}, kv, cmps, then, or)
	if errors.Is(err, errOnce) {
		err = errors.New("etcd: a server or a proxy has cancelled the request, which may have been carried out")
	}
	return resp, err
}

// commit sends a transaction once. The client's own interceptor would send it again after Canceled or
// DeadlineExceeded from the server, or from a proxy that shuts down, and return the answer to the second request as
// that to the first.
//
// etcd treats a transaction without operations as serializable: the member compares with what it has applied so far,
// which may be stale. So commit adds a read to a transaction that only compares, which makes it linearizable.
func commit(ctx *once, kv clientv3.KV, cmps []clientv3.Cmp, then, or []clientv3.Op) (*clientv3.TxnResponse, error) {
	if len(then)+len(or) == 0 && len(cmps) > 0 {
		or = []clientv3.Op{clientv3.OpGet(string(cmps[0].KeyBytes()), clientv3.WithCountOnly())}
	}
	return kv.Txn(ctx).If(cmps...).Then(then...).Else(or...).Commit()
}

// once is a context with which the client sends a request only once. The client's interceptor and KeepAliveOnce retry
// some failures, without a pause, for as long as Err returns nil; here Err never does. Done is unchanged, so contexts
// derived from it behave normally.
type once struct {
	context.Context //nolint:containedctx // once is a context
}

func (c once) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	return errOnce
}

var errOnce = fmt.Errorf("etcd: one attempt only: %w", context.Canceled)

// Send sends a request in as many copies as the attempt has. It returns the first answer or final failure, see
// [Transient], and cancels the other copies. If all copies fail otherwise, it prefers an error that leaves the
// outcome unknown. An error counts as [Refused] only if every copy was refused. Send returns when all copies have
// ended.
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

// errNone stands for no outcome yet: any other outcome replaces it.
var errNone = fmt.Errorf("%w: %w", ErrNotSent, context.Canceled)

// final reports whether err, which may be nil, settles the request: a retry is not needed or would not help.
func final(err error) bool { return err == nil || !Transient(err) }
