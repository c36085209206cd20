package sqlfence_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
)

// Claims that meet never leave a mark behind that is lower than a token that was accepted.
func TestClaim_manyAtOnce(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		t.Helper()
		const claimers, rounds = 8, 40
		var issued, lower atomic.Int64
		odd := make(chan error, claimers)
		var running sync.WaitGroup
		for range claimers {
			running.Go(func() {
				for range rounds {
					token := fence.Token(issued.Add(1))
					err := r.f.Claim(fence.NewContext(t.Context(), token), r.db, resource)
					if stale, ok := err.(*fence.StaleError); ok && stale.Highest > token { //nolint:errorlint // As it is.
						continue
					}
					var seen int64
					if err == nil {
						err = r.db.QueryRowContext(t.Context(), mark).Scan(&seen)
					}
					if err != nil {
						odd <- err
						return
					}
					if seen < int64(token) {
						lower.Add(1)
					}
				}
			})
		}
		running.Wait()
		require.Empty(t, odd)
		require.Zero(t, lower.Load(), "claims were undone by older ones")
	})
}
