package fence_test

import (
	"strings"
	"testing"
	"testing/synctest"

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

func TestGuard_ClaimPath_input(t *testing.T) {
	var g fence.Guard
	require.EqualError(t, g.ClaimPath(strings.Repeat("n", 1025), 54), "fence: resource has 1025 bytes, want 0 to 1024")
	require.ErrorIs(t, g.CheckPath("a/b", 0), fence.ErrInvalidToken)
	require.Empty(t, g.Marks())
	require.NoError(t, g.Claim("a", 54))
	require.EqualError(t, g.CheckPath("a/b", 41), `fence: stale token 41 for "a": highest seen is 54`)
}
