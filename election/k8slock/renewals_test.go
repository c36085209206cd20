package k8slock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/election/k8slock"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// Renewals use the streams of earlier ones. If the server is slow, the renewal is hedged over a second stream, which is
// kept too, even if its answer comes after the call.
func TestLock_keepsTheStreamsOfItsRenewals(t *testing.T) {
	for what, tc := range map[string]struct {
		fault fakeetcd.Fault
		want  []string
	}{
		"quick": {want: []string{""}},
		"slow":  {fakeetcd.Fault{After: timeout / 3}, []string{"", ""}},
	} {
		inBubble(t, what, func(t *testing.T) {
			a := newCandidate(t, newServer(t), k8slock.Options{})
			a.create(t)
			a.c.Inject(fakeetcd.KeepAliveOnce, tc.fault)
			for range 20 {
				time.Sleep(retryPeriod)
				require.NoError(t, a.Update(t.Context(), a.leaderRecord()))
			}
			require.Equal(t, tc.want, a.c.KeepAliveStreams())
			require.Equal(t, len(tc.want), a.c.OpenKeepAlives())
			a.RecordEvent("stopped leading")
			time.Sleep(timeout)
			require.Zero(t, a.c.OpenKeepAlives())
		})
	}
}

// A stream without an answer is closed after the time of a call, and the next renewal does not use it.
func TestLock_closesASilentStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newCandidate(t, newServer(t), k8slock.Options{})
		a.create(t)
		a.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer})
		require.NoError(t, a.Update(t.Context(), a.leaderRecord()))
		require.Equal(t, 2, a.c.OpenKeepAlives())
		time.Sleep(timeout)
		synctest.Wait()
		require.Equal(t, 1, a.c.OpenKeepAlives())
		began := time.Now()
		require.NoError(t, a.Update(t.Context(), a.leaderRecord()))
		require.Equal(t, began, time.Now())
		require.Len(t, a.c.KeepAliveStreams(), 2)
	})
}

// If the client's auth token expires during a tenure, the renewal opens another stream, with another token.
func TestLock_renewsAfterItsAuthTokenHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newCandidate(t, newServer(t), k8slock.Options{})
		a.create(t)
		require.NoError(t, a.Update(t.Context(), a.leaderRecord()))
		a.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Times: 1, Err: rpctypes.ErrGRPCInvalidAuthToken})
		require.NoError(t, a.Update(t.Context(), a.leaderRecord()))
		require.Len(t, a.c.KeepAliveStreams(), 2)
	})
}
