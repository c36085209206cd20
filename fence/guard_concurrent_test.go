package fence_test

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

// The first two tokens of a resource must meet at one mark, not at one each.
func TestGuard_firstTokensMeetAtOneMark(t *testing.T) {
	const resources = 20_000
	names := make([]string, resources)
	for i := range names {
		names[i] = strconv.Itoa(i)
	}
	var (
		g  fence.Guard
		wg sync.WaitGroup
	)
	for _, tok := range []fence.Token{41, 42} {
		wg.Go(func() {
			// The goroutine that is behind finds marks, which is faster than adding them, so it catches up.
			for _, name := range names {
				_ = g.Claim(name, tok) // 41 is refused if it comes second
			}
		})
	}
	wg.Wait()
	marks := g.Marks()
	require.Len(t, marks, resources)
	for resource, mark := range marks {
		require.Equal(t, fence.Token(42), mark, resource)
	}
}

// A newer token is not accepted, by any verb, while the function of an older one runs. When its turn comes it is compared
// again: the mark may have passed it meanwhile.
func TestGuard_Do_newerTokenWaits(t *testing.T) {
	accepted := map[string]int{"Claim": 1, "Check": 1, "Do": 1, "Load": 13, "Move": 1} // Load compares no token
	waiting := maps.Clone(verbs)
	waiting["Load"] = func(g *fence.Guard, resource string, t fence.Token) error {
		return g.Load(map[string]fence.Token{resource: t})
	}
	waiting["Move"] = func(g *fence.Guard, resource string, t fence.Token) error {
		return g.Move(resource, t, "ledger")
	}
	for name, verb := range waiting {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var g fence.Guard
				results := make(chan error, 13)
				require.NoError(t, g.Do("orders", 41, func() error {
					for tok := fence.Token(54); tok > 41; tok-- { // the newest is first in the line
						go func() { results <- verb(&g, "orders", tok) }()
						synctest.Wait()
					}
					require.Empty(t, results, "54 was accepted while 41 was still writing")
					require.Equal(t, map[string]fence.Token{"orders": 41}, g.Marks())
					return nil
				}))
				synctest.Wait()
				var all []error
				for range cap(results) {
					if err := <-results; !errors.Is(err, fence.ErrStale) {
						all = append(all, err)
					}
				}
				require.Equal(t, make([]error, accepted[name]), all, "an older token was accepted after a newer one")
				require.Equal(t, map[string]fence.Token{"orders": 54}, g.Marks())
			})
		})
	}
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
