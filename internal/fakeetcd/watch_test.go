package fakeetcd_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/fakeetcd"
)

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

func nothing(t *testing.T, ch clientv3.WatchChan) {
	t.Helper()
	synctest.Wait()
	select {
	case resp, ok := <-ch:
		require.FailNow(t, "unexpected", "response %+v, open %v", resp, ok)
	default:
	}
}

func closed(t *testing.T, ch clientv3.WatchChan) {
	t.Helper()
	synctest.Wait()
	select {
	case resp, ok := <-ch:
		require.False(t, ok, "%+v", resp)
	default:
		require.FailNow(t, "channel still open")
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
		nothing(t, ch)
		began := time.Now()
		resp := <-ch
		require.Equal(t, 70*time.Millisecond, time.Since(began))
		require.Len(t, resp.Events, 2)
		put(t, c, "a", "4")
		require.Len(t, next(t, ch).Events, 1, "from then on it is synced too")
	})
}

func TestServer_BreakWatches_resumesAfterUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		ch := c.Watch(t.Context(), "a")
		srv.BreakWatches(fakeetcd.ErrUnavailable)
		put(t, c, "a", "missed")
		resp := <-ch
		require.Equal(t, "missed", string(resp.Events[0].Kv.Value))
		require.Len(t, srv.Calls(fakeetcd.Watch), 2)
	})
}

func TestServer_BreakWatches_endsWithAnyOtherError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		ch := c.Watch(t.Context(), "a")
		srv.BreakWatches(rpctypes.ErrGRPCNoLeader)
		resp := next(t, ch)
		require.ErrorIs(t, resp.Err(), rpctypes.ErrNoLeader)
		closed(t, ch)

		ch = c.Watch(t.Context(), "a")
		srv.BreakWatches(errors.New("boom"))
		resp = next(t, ch)
		require.ErrorContains(t, resp.Err(), "boom")
		require.Zero(t, srv.Watchers())
	})
}

func TestWatch_cutHoldsEventsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		ch := c.Watch(t.Context(), "a")
		c.Cut()
		srv.Put("a", "1")
		srv.Put("a", "2")
		nothing(t, ch)
		time.Sleep(time.Hour)
		nothing(t, ch)
		c.Restore()
		require.Equal(t, "1", string(next(t, ch).Events[0].Kv.Value))
		require.Equal(t, "2", string(next(t, ch).Events[0].Kv.Value))
	})
}

func TestWatch_createdDuringACut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		c.Cut()
		closed(t, c.Watch(timeout(t, time.Second), "a"))
		require.Zero(t, srv.Watchers())
		got := make(chan clientv3.WatchChan)
		go func() { got <- c.Watch(t.Context(), "a") }()
		time.Sleep(time.Second)
		srv.Put("a", "before")
		c.Restore()
		ch := <-got
		srv.Put("a", "after")
		require.Equal(t, "after", string(next(t, ch).Events[0].Kv.Value))
	})
}

func TestWatch_faults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		began := time.Now()
		c.Inject(fakeetcd.Watch, fakeetcd.Fault{Times: 1, Before: time.Second, After: time.Second})
		ch := c.Watch(t.Context(), "a")
		require.Equal(t, 2*time.Second, time.Since(began))

		c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{Times: 1, After: 5 * time.Second})
		began = time.Now()
		srv.Put("a", "1")
		srv.Put("a", "2")
		require.Equal(t, "1", string((<-ch).Events[0].Kv.Value))
		require.Equal(t, 5*time.Second, time.Since(began))
		require.Equal(t, "2", string(next(t, ch).Events[0].Kv.Value), "order is kept")

		c.Inject(fakeetcd.Watch, fakeetcd.Fault{Times: 3, Err: fakeetcd.ErrUnavailable})
		other := c.Watch(clientv3.WithRequireLeader(t.Context()), "a") // a stream of its own
		srv.Put("a", "3")
		require.Len(t, next(t, other).Events, 1)

		c.Inject(fakeetcd.Watch, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer})
		closed(t, c.Watch(timeout(t, time.Second), "a"))
	})
}
