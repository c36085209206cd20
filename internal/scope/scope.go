// Package scope makes the context of a function that runs while a handle is held.
package scope

import (
	"context"
	"time"
)

// Work is the context for a function that the caller has run under a handle: it ends with either, with that one's
// cause, and has the values of both, the handle's before the caller's. Done must be called when the function has
// returned.
func Work(handle, caller context.Context) (work context.Context, done func()) {
	work, cancel := context.WithCancelCause(joint{handle, caller})
	stop := context.AfterFunc(caller, func() { cancel(context.Cause(caller)) })
	return work, func() {
		stop()
		cancel(nil)
	}
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
