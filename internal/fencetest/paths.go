package fencetest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

// Tree has the verbs for nodes of a tree of resources.
type Tree struct {
	Claim, Check func(ctx context.Context, path string) error // Check is only called after Claim
	Marks        func() any                                   // all marks
}

// Paths plays histories of trees, which start makes, with the given number of holders each. Holders of nodes are
// granted one after the other, and older ones act late. A holder is refused if and only if a newer holder of its node,
// or of a node above or below it, was accepted.
func Paths(t *testing.T, histories, holders int, start func() Tree) {
	t.Helper()
	random, _ := seeded(t)
	paths := []string{"a", "a/b", "a/c", "a/b/d", "a/b/e", "a/bb", "b"}
	related := func(p, q string) bool {
		return strings.HasPrefix(p+"/", q+"/") || strings.HasPrefix(q+"/", p+"/")
	}
	for range histories {
		tree := start()
		held, been := map[fence.Token]string{}, map[fence.Token]bool{}
		for token := fence.Token(1); token <= fence.Token(holders); token++ {
			held[token] = paths[random.IntN(len(paths))]
			for range 3 {
				who := 1 + fence.Token(random.Int64N(int64(token)))
				newest := fence.Token(0)
				for other := range been {
					if related(held[other], held[who]) {
						newest = max(newest, other)
					}
				}
				verb, before := tree.Claim, tree.Marks()
				if been[who] && random.IntN(2) == 0 {
					verb = tree.Check
				}
				err := verb(fence.NewContext(t.Context(), who), held[who])
				if newest <= who {
					require.NoError(t, err, "%d at %s", who, held[who])
					been[who] = true
					continue
				}
				stale, ok := errors.AsType[*fence.StaleError](err)
				require.True(t, ok, "%d at %s passed %d at %s: %v", who, held[who], newest, held[newest], err)
				require.Equal(t, who, stale.Token)
				require.False(t, stale.Read)
				require.True(t, related(stale.Resource, held[who]))
				require.Equal(t, before, tree.Marks(), "nothing is raised")
			}
		}
	}
}
