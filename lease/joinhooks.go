package lease

import "context"

// JoinHooks returns hooks that call all of these in their order, for example those for metrics and those for traces.
// Each AcquireStart gets the context that the one before it returned. The other calls get the context of the last. Nil
// hooks are skipped.
func JoinHooks(all ...*Hooks) *Hooks {
	joined := &Hooks{}
	for _, h := range all {
		if h == nil {
			continue
		}
		joined = &Hooks{
			AcquireStart: joinStart(joined.AcquireStart, h.AcquireStart),
			Queued:       join3(joined.Queued, h.Queued),
			AcquireEnd:   join3(joined.AcquireEnd, h.AcquireEnd),
			Released:     join3(joined.Released, h.Released),
			Lost:         join3(joined.Lost, h.Lost),
			Renewed:      join1(joined.Renewed, h.Renewed),
			StateChanged: join1(joined.StateChanged, h.StateChanged),
			CleanUp:      join2(joined.CleanUp, h.CleanUp),
		}
	}
	return joined
}

func joinStart(f, g func(context.Context, Acquisition) context.Context) func(context.Context, Acquisition) context.Context {
	if f == nil {
		return g
	}
	if g == nil {
		return f
	}
	return func(ctx context.Context, a Acquisition) context.Context {
		first := f(ctx, a)
		if first == nil {
			first = ctx
		}
		if second := g(first, a); second != nil {
			return second
		}
		return first
	}
}

func join1[A any](f, g func(A)) func(A) {
	if f == nil {
		return g
	}
	if g == nil {
		return f
	}
	return func(a A) {
		f(a)
		g(a)
	}
}

func join2[A, B any](f, g func(A, B)) func(A, B) {
	if f == nil {
		return g
	}
	if g == nil {
		return f
	}
	return func(a A, b B) {
		f(a, b)
		g(a, b)
	}
}

func join3[A, B, C any](f, g func(A, B, C)) func(A, B, C) {
	if f == nil {
		return g
	}
	if g == nil {
		return f
	}
	return func(a A, b B, c C) {
		f(a, b, c)
		g(a, b, c)
	}
}
