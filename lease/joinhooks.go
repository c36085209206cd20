package lease

import (
	"cmp"
	"context"
	"reflect"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// JoinHooks returns hooks that call all of these in their order, for example those for metrics and those for traces.
// Each AcquireStart gets the context that the one before it returned. The other calls get the context of the last. Nil
// hooks are skipped. If an AcquireEnd or a Released panics, the others are called all the same: each learns of the
// beginning of a hold and of its end, or of neither.
func JoinHooks(all ...*Hooks) *Hooks {
	joined := &Hooks{}
	for _, g := range all {
		if g == nil {
			continue
		}
		f := joined
		joined = &Hooks{
			AcquireStart: join(f.AcquireStart, g.AcquireStart, func(ctx context.Context, a Acquisition) context.Context {
				first := cmp.Or(f.AcquireStart(ctx, a), ctx)
				return cmp.Or(g.AcquireStart(first, a), first)
			}),
			Queued: join(f.Queued, g.Queued, func(ctx context.Context, a Acquisition, ahead string) {
				f.Queued(ctx, a, ahead)
				g.Queued(ctx, a, ahead)
			}),
			AcquireEnd: join(f.AcquireEnd, g.AcquireEnd, func(ctx context.Context, a Acquisition, r Acquired) {
				defer g.AcquireEnd(ctx, a, r)
				f.AcquireEnd(ctx, a, r)
			}),
			Released: join(f.Released, g.Released, func(ctx context.Context, h Hold, err error) {
				defer g.Released(ctx, h, err)
				f.Released(ctx, h, err)
			}),
			Lost: join(f.Lost, g.Lost, func(ctx context.Context, h Hold, err *LostError) {
				f.Lost(ctx, h, err)
				g.Lost(ctx, h, err)
			}),
			Renewed:      join(f.Renewed, g.Renewed, func(r Renewal) { f.Renewed(r); g.Renewed(r) }),
			StateChanged: join(f.StateChanged, g.StateChanged, func(s Status) { f.StateChanged(s); g.StateChanged(s) }),
			CleanUp: join(f.CleanUp, g.CleanUp, func(lease clientv3.LeaseID, keys int) {
				f.CleanUp(lease, keys)
				g.CleanUp(lease, keys)
			}),
		}
	}
	return joined
}

// join returns both or, if one of f and g is nil, the other.
func join[F any](f, g, both F) F {
	switch {
	case reflect.ValueOf(f).IsNil():
		return g
	case reflect.ValueOf(g).IsNil():
		return f
	}
	return both
}
