// Package scope joins the lives of a call and of a handle.
package scope

import (
	"context"
	"time"
)

// Join is ctx, which ends with life too, with the cause of whichever is first. Done must be called after its last use.
func Join(ctx, life context.Context) (joined context.Context, done func()) {
	joined, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return joined, func() {
		stop()
		cancel(nil)
	}
}

// Work is the context for a function that the caller has run under a handle: it ends with either, with that one's
// cause, and has the values of both, the handle's before the caller's. Done must be called when the function has
// returned.
func Work(handle, caller context.Context) (work context.Context, done func()) {
	return Join(joint{handle, caller}, caller)
}

// Beyond is ctx for the rest of a call that has just ended handle, where ctx was alive before that. If it has ended with
// handle, being that or made of it, the result goes on, until ctx's deadline but no longer than bound.
func Beyond(ctx, handle context.Context, alive bool, bound time.Duration) (context.Context, context.CancelFunc) {
	if !alive || ctx.Err() == nil || context.Cause(ctx) != context.Cause(handle) { //nolint:errorlint // the very same
		return ctx, func() {}
	}
	if deadline, ok := ctx.Deadline(); ok {
		bound = min(bound, time.Until(deadline))
	}
	return context.WithTimeout(context.WithoutCancel(ctx), bound)
}

// joint is a handle's context with what the caller's has besides: its values, and its deadline, since the
// context made of the two ends with the caller's too.
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
