package etcd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

// Do calls do until it succeeds, fails finally or ctx ends. The first attempt ends after bound: a short bound soon leaves
// an endpoint that does not answer for the next one. The later ones come in turns of as many as there are endpoints, with
// twice the bound in the first turn, four times in the second, eight times from the third on, less a random part of up to
// a half: that allows for a slow network. The bound grows by turns and not by attempts, because the client takes its
// endpoints in turn for all its requests, see [Attempt]: several attempts may meet the same sick endpoint, which says
// nothing about the others.
//
// When ctx ends, the error wraps ctx's cause, and contains the failure of the last attempt only as text: errors.Is
// must not match an attempt's own time-out as the caller's.
func (c *Conn) Do(ctx context.Context, bound time.Duration, do func(*Attempt) error) error {
	_, err := c.While(ctx, ctx, bound, do)
	return err
}

// While is [Conn.Do], but also ends when life ends, with life's cause. Late reports that the outcome of an attempt is
// unknown: whatever the error is, the request of that attempt may have been carried out, or may still be.
func (c *Conn) While(ctx, life context.Context, bound time.Duration, do func(*Attempt) error) (late bool, err error) {
	var b Backoff
	var last, why error // the last failure other than a context's end; the reason why there was no connection
	limit, copies := bound, 1
	for tries := 0; ; tries++ {
		a := &Attempt{conn: c, caller: ctx, life: life, bound: limit, copies: copies}
		err := a.try(do)
		if err == nil {
			return late, nil
		}
		late = late || !Refused(err)
		if !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
			last = err
		}
		why = Better(why, c.Unreachable(ctx))
		switch {
		case ctx.Err() != nil:
			return late, ended(context.Cause(ctx), last, why)
		case life.Err() != nil:
			return late, ended(context.Cause(life), last, why)
		case c.Client.Ctx().Err() != nil:
			return late, fmt.Errorf("the etcd client is closed: %w", err)
		case !Transient(err):
			return late, explain(err)
		}
		if cause := b.sleep(ctx, life); cause != nil {
			return late, ended(cause, last, Better(why, c.Unreachable(ctx)))
		}
		c.Reconnect()
		limit = Jitter(bound << min(1+tries/c.endpoints(), 3))
		if !Refused(err) && !TooMuch(err) { // else an endpoint has answered
			copies = min(copies+1, c.endpoints())
		}
	}
}

func (a *Attempt) try(do func(*Attempt) error) error {
	for _, ctx := range [...]context.Context{a.caller, a.life} {
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %w", ErrNotSent, context.Cause(ctx))
		}
	}
	defer a.close()
	return do(a)
}

// ended is the error of a call whose context ended with cause. last is the last failure of an attempt, or nil; why is
// the reason why there was no connection, or nil if there was one.
func ended(cause, last, why error) error {
	if why != nil || last == nil || errors.Is(last, cause) {
		return unconnected(cause, why)
	}
	return fmt.Errorf("%w (last attempt: %s)", cause, last.Error())
}

// Backoff gives the pauses between attempts: 25 ms, doubled each time up to Longest, less a random part of up to a half.
// The jitter keeps clients that failed together from coming back together. The zero value is ready. A Backoff is not
// safe for concurrent use.
type Backoff struct {
	Longest time.Duration // the longest pause; less than a second counts as a second

	n int
}

// Next returns the next pause.
func (b *Backoff) Next() time.Duration {
	pause := 25 * time.Millisecond << min(b.n, 16)
	b.n++
	return Jitter(min(pause, max(b.Longest, time.Second)))
}

// Reset starts again with the shortest pause.
func (b *Backoff) Reset() { b.n = 0 }

// Sleep waits for the next pause. It returns ctx's cause if ctx ends first.
func (b *Backoff) Sleep(ctx context.Context) error { return b.sleep(ctx, ctx) }

// sleep returns the cause of whichever context ends first.
func (b *Backoff) sleep(ctx, life context.Context) error {
	t := time.NewTimer(b.Next())
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-life.Done():
		return context.Cause(life)
	}
}

// Jitter takes a random part of up to a half off d. The client takes its endpoints strictly in turn, so requests at
// regular intervals could meet the same sick endpoint each time.
func Jitter(d time.Duration) time.Duration { return d - rand.N(d/2) }
