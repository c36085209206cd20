package lease_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
)

// The lock is lost while the function, which has had its longest hold, still runs: both are reported.
func TestSession_Do_lostAfterTheLongestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{})
		err := e.s.Do(t.Context(), "a", func(ctx context.Context, _ fence.Token) error {
			<-ctx.Done()
			require.NoError(t, e.srv.Revoke(e.s.Status().LeaseID))
			synctest.Wait()
			return nil
		}, lease.WithMaxHold(2*time.Second))
		require.ErrorIs(t, err, lease.ErrMaxHold)
		requireLost(t, err, lease.ReasonLeaseGone)
	})
}
