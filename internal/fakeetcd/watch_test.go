package fakeetcd_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
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
