package fence_test

import (
	"errors"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

// Holders of nodes of a tree come one after the other, and those who excluded a newer one were paused and act late. Each is
// refused if and only if a newer holder of a node above it, below it, or of its own has been there.
func TestGuard_paths(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	paths := []string{"a", "a/b", "a/c", "a/b/d", "a/b/e", "a/bb", "b"}
	related := func(p, q string) bool {
		return strings.HasPrefix(p+"/", q+"/") || strings.HasPrefix(q+"/", p+"/")
	}
	for range 300 {
		var g fence.Guard
		held := map[fence.Token]string{}
		been := map[fence.Token]bool{}
		for token := fence.Token(1); token < 30; token++ {
			held[token] = paths[r.IntN(len(paths))]
			for range 3 {
				who := 1 + fence.Token(r.Int64N(int64(token)))
				newest := fence.Token(0)
				for other := range been {
					if related(held[other], held[who]) {
						newest = max(newest, other)
					}
				}
				before, readers := g.Marks(), g.ReadMarks()
				verb := g.CheckPath
				if !been[who] && r.IntN(2) == 0 {
					verb = g.ClaimPath
				}
				err := verb(held[who], who)
				if newest <= who {
					require.NoError(t, err, "%d at %s", who, held[who])
					been[who] = true
					continue
				}
				stale, ok := errors.AsType[*fence.StaleError](err)
				require.True(t, ok, "%d at %s passed %d at %s", who, held[who], newest, held[newest])
				require.Equal(t, who, stale.Token)
				require.False(t, stale.Read)
				require.True(t, related(stale.Resource, held[who]))
				require.True(t, maps.Equal(before, g.Marks()) && maps.Equal(readers, g.ReadMarks()), "nothing is raised")
			}
		}
	}
}

// Who waits for a function at one branch holds up nobody on another, nor the function itself where it looks at a node above.
func TestGuard_ClaimPath_holdsUpNobodyElse(t *testing.T) {
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
		require.ErrorIs(t, <-newer, fence.ErrStale, "of a node below one that has a newer holder")
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
