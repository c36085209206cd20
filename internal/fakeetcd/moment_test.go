package fakeetcd_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// A fault's functions are called at their moments: before the server acts, and after it has acted.
func TestFault_momentsOfACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		var seen []int
		look := func() { seen = append(seen, len(srv.Keys("a"))) }
		c.Inject(fakeetcd.Put, fakeetcd.Fault{Times: 1, OnRequest: look, OnAnswer: look})
		took, err := tryPut(t.Context(), c)
		require.NoError(t, err)
		require.Zero(t, took)
		require.Equal(t, []int{0, 1}, seen)

		// A cut at that moment holds back the messages that have not passed yet.
		for acted, f := range map[bool]fakeetcd.Fault{false: {OnRequest: c.Cut}, true: {OnAnswer: c.Cut}} {
			srv.Delete("a")
			f.Times = 1
			c.Inject(fakeetcd.Put, f)
			_, err = tryPut(timeout(t, time.Second), c)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, acted, len(srv.Keys("a")) == 1)
			c.Restore()
		}
	})
}

func TestFault_momentOfEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		events := c.Watch(t.Context(), "a")
		sent := 0
		c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{Times: 1, After: time.Second, OnAnswer: func() {
			sent++
			c.BreakWatches(fakeetcd.ErrUnavailable)
		}})
		rev := srv.Put("a", "")
		resp := <-events // the client resumes
		require.Equal(t, rev, resp.Events[0].Kv.ModRevision)
		require.Equal(t, 1, sent)
	})
}

func TestServer_History_outlivesACompaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, _ := start(t)
		began := time.Now()
		first := srv.Put("a", "1")
		srv.Put("b", "")
		time.Sleep(time.Second)
		second := srv.Put("a", "2")
		require.True(t, srv.Delete("a"))
		require.NoError(t, srv.Compact(srv.Rev()))
		got := srv.History("a")
		require.Len(t, got, 3)
		require.Equal(t, []int64{first, second, second + 1}, []int64{got[0].Rev, got[1].Rev, got[2].Rev})
		require.Equal(t, []bool{true, true, false}, []bool{got[0].Put, got[1].Put, got[2].Put})
		require.Equal(t, began, got[0].At)
		require.Equal(t, began.Add(time.Second), got[2].At)
		require.Nil(t, got[0].Prev)
		require.Equal(t, "2", string(got[2].Prev.Value))
	})
}

func TestServer_SetRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		srv.SetRate(1.25)
		granted, err := c.Grant(t.Context(), 10)
		require.NoError(t, err)
		_, err = c.Put(t.Context(), "a", "", clientv3.WithLease(granted.ID))
		require.NoError(t, err)
		time.Sleep(8*time.Second - 1)
		synctest.Wait()
		require.Len(t, srv.Keys("a"), 1)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Empty(t, srv.Keys("a"))
	})
}
