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

// start makes a server and one client for the present bubble. The test fails if the fake or the real client leaves a
// goroutine behind.
func start(t *testing.T) (*fakeetcd.Server, *fakeetcd.Client) {
	t.Helper()
	srv := fakeetcd.New()
	t.Cleanup(srv.Close)
	return srv, srv.NewClient(t.Context())
}

func put(t *testing.T, c *fakeetcd.Client, key, val string, opts ...clientv3.OpOption) int64 {
	t.Helper()
	resp, err := c.Put(t.Context(), key, val, opts...)
	require.NoError(t, err)
	return resp.Header.Revision
}

func grant(t *testing.T, c *fakeetcd.Client, ttl int64) clientv3.LeaseID {
	t.Helper()
	resp, err := c.Grant(t.Context(), ttl)
	require.NoError(t, err)
	return resp.ID
}

// An expired lease ends at the next scan, with all its keys in one revision. A renewal waits for that.
func TestLease_expiresAtTheScanAfterItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		began := time.Now()
		time.Sleep(100 * time.Millisecond)
		lease := grant(t, c, 5)
		put(t, c, "k/2", "", clientv3.WithLease(lease))
		put(t, c, "k/1", "", clientv3.WithLease(lease))
		put(t, c, "other", "")
		rev := srv.Rev()
		time.Sleep(5 * time.Second)
		require.Len(t, srv.Leases(), 1)
		_, err := c.KeepAliveOnce(t.Context(), lease)
		require.ErrorIs(t, err, rpctypes.ErrLeaseNotFound)
		require.Equal(t, 5500*time.Millisecond, time.Since(began))
		require.Empty(t, srv.Leases())
		require.Len(t, srv.Keys(""), 1)
		require.Equal(t, rev+1, srv.Rev(), "one revision for all keys")
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

// next returns the next response, which must come before time moves.
func next(t *testing.T, ch clientv3.WatchChan) clientv3.WatchResponse {
	t.Helper()
	synctest.Wait()
	select {
	case resp, ok := <-ch:
		require.True(t, ok, "channel closed")
		return resp
	default:
		require.FailNow(t, "no response")
		return clientv3.WatchResponse{}
	}
}

func TestWatch_pastRevisionIsServedAtTheNextSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t)
		put(t, c, "a", "1") // 2
		put(t, c, "a", "2") // 3
		time.Sleep(30 * time.Millisecond)
		ch := c.Watch(t.Context(), "a", clientv3.WithRev(3))
		now := c.Watch(t.Context(), "a", clientv3.WithRev(4))
		put(t, c, "a", "3")
		require.Len(t, next(t, now).Events, 1, "a watch on the next revision is synced at once")
		synctest.Wait()
		require.Empty(t, ch)
		began := time.Now()
		resp := <-ch
		require.Equal(t, 70*time.Millisecond, time.Since(began))
		require.Len(t, resp.Events, 2)
		put(t, c, "a", "4")
		require.Len(t, next(t, ch).Events, 1, "from then on it is synced too")
	})
}

// A lost answer breaks the stream, as it breaks a connection. The client resumes all watches on another one.
func TestWatch_lostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t)
		before := c.Watch(t.Context(), "a")
		c.Inject(fakeetcd.Watch, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer})
		after := c.Watch(t.Context(), "b") // returns when it is confirmed
		put(t, c, "a", "1")
		put(t, c, "b", "1")
		for _, ch := range []clientv3.WatchChan{before, after} {
			require.Len(t, (<-ch).Events, 1)
		}
	})
}
