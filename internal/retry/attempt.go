package retry

import (
	"context"
	"sync"
	"time"
)

// attempt is the context of one attempt: it ends with the caller's, with life and after bound. What that takes (a
// timer, a place in the lists of two contexts) is made on its first use: an attempt that travels with others' is
// bounded with them, and does without; see [Parts].
type attempt struct {
	caller, life context.Context //nolint:containedctx // it is a context made of them
	bound        time.Duration
	copies       int

	once   sync.Once
	made   context.Context //nolint:containedctx // the same, once made
	cancel context.CancelFunc
	timer  *time.Timer
	free   func() bool // of life
}

// try makes one attempt.
func try(ctx, life context.Context, bound time.Duration, copies int, do func(context.Context) error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case life.Err() != nil:
		return context.Cause(life)
	}
	a := &attempt{caller: ctx, life: life, bound: bound, copies: copies}
	defer a.end()
	return do(a) //nolint:contextcheck // it is made of ctx
}

// Parts returns what the context of an attempt is made of, for one who sees to it by other means that the attempt
// ends after bound. Of another context it returns that itself, and no bound.
func Parts(ctx context.Context) (caller, life context.Context, bound time.Duration) {
	if a, ok := ctx.(*attempt); ok {
		return a.caller, a.life, a.bound
	}
	return ctx, ctx, 0
}

func (a *attempt) context() context.Context {
	a.once.Do(func() {
		a.made, a.cancel = context.WithCancel(a.caller)
		if a.life != a.caller {
			a.free = context.AfterFunc(a.life, a.cancel)
		}
		// Not a deadline: gRPC would send that along, and both sides would keep time for each request.
		a.timer = time.AfterFunc(a.bound, a.cancel)
	})
	return a.made
}

// end ends the attempt and what was made for it.
func (a *attempt) end() {
	a.once.Do(func() { a.made = over })
	if a.cancel == nil {
		return
	}
	a.cancel()
	a.timer.Stop()
	if a.free != nil {
		a.free()
	}
}

// over is a context that has ended.
var over = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func (a *attempt) Deadline() (time.Time, bool) { return a.context().Deadline() }
func (a *attempt) Done() <-chan struct{}       { return a.context().Done() }
func (a *attempt) Err() error                  { return a.context().Err() }

func (a *attempt) Value(key any) any {
	switch {
	case key != (copiesKey{}):
		return a.context().Value(key)
	case a.copies > 1:
		return copying{n: a.copies}
	default:
		return nil // whatever attempt this one is a part of
	}
}
