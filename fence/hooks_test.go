package fence_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

func TestGuard_hooks(t *testing.T) {
	told := make(fencetest.Told, 9)
	g := fence.Guard{Hooks: told.Hooks()}
	require.NoError(t, g.Claim("orders", 54))
	_, err := told.Last()
	require.NoError(t, err)

	elsewhere := &fence.StaleError{Resource: "elsewhere", Token: 55}
	ended, end := context.WithCancel(t.Context())
	end()
	do := func(err error) error { return g.Do("orders", 54, func() error { return err }) }
	for name, verb := range map[string]func() (*fence.Access, error){
		"a function that fails": func() (*fence.Access, error) {
			require.EqualError(t, do(errors.New("failed")), "failed")
			return &fence.Access{Resource: "orders", Token: 54}, nil
		},
		"a function's refusal elsewhere": func() (*fence.Access, error) {
			require.ErrorIs(t, do(elsewhere), elsewhere)
			return &fence.Access{Resource: "orders", Token: 54}, nil
		},
		"a path": func() (*fence.Access, error) {
			return &fence.Access{Resource: "a/b", Token: 54}, g.ClaimPath("a/b", 54)
		},
		"a stale path": func() (*fence.Access, error) {
			return &fence.Access{Resource: "orders/today", Token: 41}, g.CheckPath("orders/today", 41)
		},
		"a context that another's refusal has ended": func() (*fence.Access, error) {
			return &fence.Access{Resource: "busy", Token: 54}, g.Do("busy", 54, func() error {
				for _, other := range []error{elsewhere, &fence.StaleError{Resource: "busy", Token: 54}} {
					ctx, cancel := context.WithCancelCause(t.Context())
					cancel(other)
					require.ErrorIs(t, g.CheckContext(ctx, "busy", 55), other)
					_, err := told.Last()
					require.Error(t, err, "the hooks are not called")
				}
				return nil
			})
		},
		"an illegal token": func() (*fence.Access, error) { return nil, g.Check("/orders", 0) },
		"an ended context": func() (*fence.Access, error) { return nil, g.CheckContext(ended, "orders", 60) },
	} {
		t.Run(name, func(t *testing.T) {
			want, err := verb()
			got, failure := told.Last()
			if want == nil {
				require.Error(t, err)
				require.Error(t, failure, "the hooks are not called")
				return
			}
			require.NoError(t, failure)
			require.Equal(t, fencetest.Event{Access: *want, Err: err}, got)
		})
	}
}

func TestGuard_Check_doesNotAllocate(t *testing.T) {
	var calls int
	resource := string([]byte("orders")) // as it comes from a request, not a constant
	for name, hooks := range map[string]*fence.Hooks{
		"none": nil, "empty": {}, "set": {Accepted: func(context.Context, fence.Access) { calls++ }},
	} {
		t.Run(name, func(t *testing.T) {
			g := fence.Guard{Hooks: hooks}
			require.NoError(t, g.Claim(resource, 54))
			require.Zero(t, testing.AllocsPerRun(1000, func() { _ = g.Check(resource, 54) }))
			require.ErrorIs(t, g.Check(resource, 53), fence.ErrStale, "without a hook for refusals")
		})
	}
	require.NotZero(t, calls)
}
