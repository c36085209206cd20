package fence_test

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"

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

// A newer token is not accepted, by any verb, while the function of an older one runs.
func TestGuard_Do_newerTokenWaits(t *testing.T) {
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
				accepted := make(chan error, 1)
				require.NoError(t, g.Do("orders", 41, func() error {
					go func() { accepted <- verb(&g, "orders", 54) }()
					synctest.Wait()
					require.Empty(t, accepted, "54 was accepted while 41 was still writing")
					require.Equal(t, map[string]fence.Token{"orders": 41}, g.Marks())
					return nil
				}))
				require.NoError(t, <-accepted)
				require.Equal(t, map[string]fence.Token{"orders": 54}, g.Marks())
			})
		})
	}
}

// A token that had to wait is compared again when its turn comes: the mark may have passed it meanwhile.
func TestGuard_waitersAreComparedAgain(t *testing.T) {
	for name, verb := range verbs {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const newest = 54
				var (
					g   fence.Guard
					wg  sync.WaitGroup
					ran []fence.Token // guarded by Do
				)
				require.NoError(t, g.Do("orders", 41, func() error {
					for tok := fence.Token(newest); tok > 41; tok-- { // the newest is first in the line
						wg.Go(func() {
							var err error
							if name == "Do" {
								err = g.Do("orders", tok, func() error {
									ran = append(ran, tok)
									return nil
								})
							} else {
								err = verb(&g, "orders", tok)
							}
							if tok != newest && !errors.Is(err, fence.ErrStale) {
								t.Errorf("token %d came after the newest: %v", tok, err)
							}
						})
						synctest.Wait()
					}
					return nil
				}))
				wg.Wait()
				require.Equal(t, map[string]fence.Token{"orders": newest}, g.Marks())
				require.True(t, slices.IsSorted(ran), "an older token wrote after a newer one: %v", ran)
			})
		})
	}
}
