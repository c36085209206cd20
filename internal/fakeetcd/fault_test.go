package fakeetcd_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/internal/fakeetcd"
)

func tryPut(ctx context.Context, c *fakeetcd.Client) (took time.Duration, err error) {
	began := time.Now()
	_, err = c.Put(ctx, "a", "")
	return time.Since(began), err
}

func TestClient_Inject_order(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		expect := func(want time.Duration) {
			t.Helper()
			took, err := tryPut(t.Context(), c)
			require.NoError(t, err)
			require.Equal(t, want, took)
		}
		c.Inject(fakeetcd.Any, fakeetcd.Fault{After: 1 * time.Second})
		remove := c.Inject(fakeetcd.Put, fakeetcd.Fault{After: 2 * time.Second})
		c.Inject(fakeetcd.Put, fakeetcd.Fault{Times: 2, After: 3 * time.Second})
		c.Inject(fakeetcd.Put, fakeetcd.Fault{Times: 1, After: 4 * time.Second})
		c.Inject(fakeetcd.Put, fakeetcd.Fault{Times: 1, After: 5 * time.Second, Match: func(call fakeetcd.Call) bool {
			r, ok := call.Request.(*pb.PutRequest)
			return ok && string(r.Key) != "a"
		}})
		expect(3 * time.Second)
		expect(3 * time.Second)
		expect(4 * time.Second)
		expect(2 * time.Second)
		remove()
		expect(1 * time.Second)
		c.Reset()
		expect(0)
		took, err := tryPut(t.Context(), srv.NewClient(t.Context()))
		require.NoError(t, err)
		require.Zero(t, took, "faults are the client's own")
	})
}

func TestFault_KeepAliveOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		lease := grant(t, c, 60)
		c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer})
		_, err := c.KeepAliveOnce(timeout(t, time.Second), lease)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 60*time.Second, srv.Leases()[0].Expiry.Sub(srv.Calls(fakeetcd.Grant)[0].Acted), "renewed at once")

		time.Sleep(time.Second)
		c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Times: 1, Before: 2 * time.Second, Late: true})
		_, err = c.KeepAliveOnce(timeout(t, time.Second), lease)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(time.Second)
		synctest.Wait() // both timers are due at this instant
		require.Equal(t, time.Minute, time.Until(srv.Leases()[0].Expiry), "renewed late")

		// The real client repeats by itself, and must not spin.
		c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Err: fakeetcd.ErrUnavailable})
		_, err = c.KeepAliveOnce(timeout(t, time.Second), lease)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		c.Reset()
		c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Times: 3, Err: fakeetcd.ErrUnavailable})
		_, err = c.KeepAliveOnce(t.Context(), lease)
		require.NoError(t, err)
	})
}

func TestClient_Cut_holdsCallsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		lease := grant(t, c, 60)
		c.Cut()
		c.Cut()
		_, err := tryPut(timeout(t, time.Second), c)
		require.ErrorIs(t, err, context.DeadlineExceeded)

		done := make(chan error, 2)
		go func() {
			_, err := c.KeepAliveOnce(t.Context(), lease)
			done <- err
		}()
		go func() {
			_, err := c.Put(t.Context(), "b", "", clientv3.WithLease(lease))
			done <- err
		}()
		_, err = tryPut(t.Context(), srv.NewClient(t.Context()))
		require.NoError(t, err, "the link is the client's own")
		require.True(t, srv.Delete("a"))
		time.Sleep(10 * time.Second)
		require.Empty(t, done)
		require.Empty(t, srv.Keys(""))

		c.Restore()
		c.Restore()
		require.NoError(t, <-done)
		require.NoError(t, <-done)
		require.Equal(t, []string{"b"}, keyNames(srv, ""), "the request whose caller gave up is gone")
		require.Equal(t, time.Minute, time.Until(srv.Leases()[0].Expiry))
	})
}
