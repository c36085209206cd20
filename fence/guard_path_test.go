package fence_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

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
