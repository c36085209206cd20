package fence_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

// A claim that waits for a function on one branch delays no other branch, nor the function when it checks a node above.
func TestGuard_ClaimPath_delaysNoOtherBranch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g fence.Guard
		require.NoError(t, g.ClaimPath("a/b", 5))
		newer := make(chan error, 1)
		require.NoError(t, g.Do("a/b", 5, func() error {
			go func() { newer <- g.ClaimPath("a/b", 7) }()
			synctest.Wait()
			require.Empty(t, newer)
			require.NoError(t, g.ClaimPath("a/c", 8))
			return g.Check("a", 9)
		}))
		require.ErrorIs(t, <-newer, fence.ErrStale, "the node above has a newer holder")
	})
}

// While a claim waits for a function at a node above, it does not hold the path's end: the function may use that.
func TestGuard_ClaimPath_waitsWithoutATurn(t *testing.T) {
	for name, busy := range map[string]string{"root": "a", "between": "a/b"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var g fence.Guard
				claimed := make(chan error, 1)
				require.NoError(t, g.Do(busy, 5, func() error {
					go func() { claimed <- g.ClaimPath("a/b/c", 7) }()
					synctest.Wait()
					require.Empty(t, claimed)
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					require.NoError(t, g.DoContext(ctx, "a/b/c", 5, func() error { return nil }), "the claim holds the node")
					return nil
				}))
				require.NoError(t, <-claimed)
			})
		})
	}
}

func TestGuard_ClaimPath_input(t *testing.T) {
	var g fence.Guard
	require.EqualError(t, g.ClaimPath(strings.Repeat("n", 1025), 54), "fence: resource has 1025 bytes, want 0 to 1024")
	require.ErrorIs(t, g.CheckPath("a/b", 0), fence.ErrInvalidToken)
	require.Empty(t, g.Marks())
	require.NoError(t, g.Claim("a", 54))
	require.EqualError(t, g.CheckPath("a/b", 41), `fence: stale token 41 for "a": highest seen is 54`)
}
