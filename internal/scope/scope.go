// Package scope makes contexts from the context of a call and that of a handle.
package scope

import (
	"context"
	"time"
)

// Join returns a context like ctx that also ends with life; the cause is that of whichever ends first. done must be
// called after its last use.
func Join(ctx, life context.Context) (joined context.Context, done func()) {
	joined, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return joined, func() {
		stop()
		cancel(nil)
	}
}

// Work returns the context for a function that a caller runs under a handle. It ends when either ends, with that one's
// cause, and has the values of both, the handle's first. done must be called when the function has returned.
func Work(handle, caller context.Context) (work context.Context, done func()) {
	return Join(joint{handle, caller}, caller)
}

// Beyond returns the context for the rest of a call that has just ended handle, such as Unlock. It is ctx, unless ctx has
// ended with handle, because it is handle or derived from it. Then the result has not ended: it lasts until ctx's
// deadline, but no longer than bound. ended reports that ctx had ended before the call though handle had not. The cancel
// function must be called.
func Beyond(ctx, handle context.Context, ended bool, bound time.Duration) (context.Context, context.CancelFunc) {
	if ended || ctx.Err() == nil || context.Cause(ctx) != context.Cause(handle) { //nolint:errorlint // the same value
		return ctx, func() {}
	}
	if deadline, ok := ctx.Deadline(); ok {
		bound = min(bound, time.Until(deadline))
	}
	return context.WithTimeout(context.WithoutCancel(ctx), bound)
}

// joint is a handle's context with the caller's values besides its own, and with the caller's deadline: the context
// that Work derives from it ends with the caller's too.
type joint struct {
	context.Context //nolint:containedctx // a context made of two

	caller context.Context //nolint:containedctx // for its values and deadline only
}

func (c joint) Deadline() (time.Time, bool) { return c.caller.Deadline() }

func (c joint) Value(key any) any {
	if v := c.Context.Value(key); v != nil {
		return v
	}
	return c.caller.Value(key)
}
