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

// A claim waits for a function at any node. Meanwhile it holds no other node, and is refused if a newer holder comes
// there.
func TestGuard_ClaimPath_waitsWithoutATurn(t *testing.T) {
	nodes := []string{"a", "a/b", "a/b/c"}
	for _, busy := range nodes {
		for _, used := range nodes {
			synctest.Test(t, func(t *testing.T) {
				var g fence.Guard
				claimed := make(chan error, 1)
				require.NoError(t, g.Do(busy, 5, func() error {
					go func() { claimed <- g.ClaimPath("a/b/c", 7) }()
					synctest.Wait()
					require.Empty(t, claimed, "the claim does not wait at %s", busy)
					if used == busy {
						return nil
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					require.NoError(t, g.DoContext(ctx, used, 8, func() error { return nil }), "the claim holds %s", used)
					return nil
				}))
				err := <-claimed
				if used == busy {
					require.NoError(t, err)
					return
				}
				require.Equal(t, &fence.StaleError{Resource: used, Token: 7, Highest: 8}, err, "it has waited at %s", busy)
			})
		}
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
