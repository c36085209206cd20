package fakeetcd_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/fakeetcd"
)

func TestLease_expiresAtTheScanAfterItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		began := time.Now()
		time.Sleep(100 * time.Millisecond)
		lease := grant(t, c, 5) // expires at 5.1 s
		put(t, c, "k/2", "", clientv3.WithLease(lease))
		put(t, c, "k/1", "", clientv3.WithLease(lease))
		put(t, c, "other", "")
		rev := srv.Rev()
		require.NoError(t, srv.Await(t.Context(), func() bool { return len(srv.Leases()) == 0 }))
		require.Equal(t, 5500*time.Millisecond, time.Since(began))
		require.Equal(t, []string{"other"}, keyNames(srv, ""))
		require.Equal(t, rev+1, srv.Rev(), "one revision for all keys")
	})
}

func TestLease_KeepAliveOnce_restartsTheTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		began := time.Now()
		lease := grant(t, c, 2)
		time.Sleep(1900 * time.Millisecond)
		left, err := c.TimeToLive(t.Context(), lease)
		require.NoError(t, err)
		require.Equal(t, []int64{0, 2}, []int64{left.TTL, left.GrantedTTL}, "less than a second remains")
		resp, err := c.KeepAliveOnce(t.Context(), lease)
		require.NoError(t, err)
		require.EqualValues(t, 2, resp.TTL)
		require.Len(t, srv.Calls(fakeetcd.KeepAliveOnce), 1)
		require.NoError(t, srv.Await(t.Context(), func() bool { return len(srv.Leases()) == 0 }))
		require.Equal(t, 4*time.Second, time.Since(began))
		_, err = c.KeepAliveOnce(t.Context(), lease)
		require.ErrorIs(t, err, rpctypes.ErrLeaseNotFound)
	})
}

func TestLease_KeepAliveOnce_waitsForTheRevocationOfAnExpiredLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t)
		time.Sleep(100 * time.Millisecond)
		lease := grant(t, c, 2) // expires at 2.1 s, revoked at 2.5 s
		time.Sleep(2100 * time.Millisecond)
		began := time.Now()
		_, err := c.KeepAliveOnce(t.Context(), lease)
		require.ErrorIs(t, err, rpctypes.ErrLeaseNotFound)
		require.Equal(t, 300*time.Millisecond, time.Since(began))
	})
}

func TestServer_ChangeLeader_restartsLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		began := time.Now()
		grant(t, c, 10)
		time.Sleep(9 * time.Second)
		srv.ChangeLeader()
		require.NoError(t, srv.Await(t.Context(), func() bool { return len(srv.Leases()) == 0 }))
		require.Equal(t, 19*time.Second, time.Since(began))
	})
}
