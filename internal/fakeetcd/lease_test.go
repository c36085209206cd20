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

func TestLease_Grant_ttl(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		resp, err := c.Grant(t.Context(), 1)
		require.NoError(t, err)
		require.EqualValues(t, 2, resp.TTL, "raised silently")
		_, err = c.Grant(t.Context(), 9_000_000_001)
		require.ErrorIs(t, err, rpctypes.ErrLeaseTTLTooLarge)
		long, err := c.Grant(t.Context(), 9_000_000_000)
		require.NoError(t, err)
		require.Greater(t, long.ID, resp.ID)
		all, err := c.Leases(t.Context())
		require.NoError(t, err)
		require.Len(t, all.Leases, 2)
		require.Equal(t, 2*time.Second, srv.Leases()[0].TTL)
	})
}

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

func TestLease_KeepAlive_runsForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		lease := grant(t, c, 3)
		ch, err := c.KeepAlive(t.Context(), lease)
		require.NoError(t, err)
		go func() {
			time.Sleep(time.Hour)
			_ = srv.Revoke(lease)
		}()
		n := 0
		for range ch {
			n++
		}
		require.Greater(t, n, 2000)
	})
}

func TestLease_Revoke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		lease := grant(t, c, 30)
		put(t, c, "b", "", clientv3.WithLease(lease))
		put(t, c, "a", "", clientv3.WithLease(lease))
		time.Sleep(1500 * time.Millisecond)
		ttl, err := c.TimeToLive(t.Context(), lease, clientv3.WithAttachedKeys())
		require.NoError(t, err)
		require.Equal(t, []int64{28, 30}, []int64{ttl.TTL, ttl.GrantedTTL})
		require.Equal(t, [][]byte{[]byte("a"), []byte("b")}, ttl.Keys)

		rev := srv.Rev()
		resp, err := c.Revoke(t.Context(), lease)
		require.NoError(t, err)
		require.Equal(t, rev+1, resp.Header.Revision)
		require.Empty(t, srv.Keys(""))
		_, err = c.Revoke(t.Context(), lease)
		require.ErrorIs(t, err, rpctypes.ErrLeaseNotFound)
		require.ErrorIs(t, srv.Revoke(lease), rpctypes.ErrLeaseNotFound)
		ttl, err = c.TimeToLive(t.Context(), lease)
		require.NoError(t, err)
		require.EqualValues(t, -1, ttl.TTL)
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
