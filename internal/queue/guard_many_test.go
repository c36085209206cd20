package queue_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// numbered returns names with a common prefix.
func numbered(i int) string { return fmt.Sprintf("jobs/%03d", i) }

// scattered returns names without one.
func scattered(i int) string { return string(rune('A'+i%50)) + fmt.Sprint(i/50) }

const mostWatched = 256

// requireWatchers requires the number of watches that n guarded entries have.
func (e *env) requireWatchers(t *testing.T, n int) {
	t.Helper()
	require.Equal(t, min(n, mostWatched), e.srv.Watchers())
}

// Each entry's end is reported and nothing else: of the first 256 at once, of the others within the period. Each
// watch is of one key, so it shows nobody else's keys.
func TestGuards_fewOrMany(t *testing.T) {
	for _, n := range []int{1, 17, mostWatched, mostWatched + 1, 400} {
		bubbleOf(t, fmt.Sprint(n), func(t *testing.T, e *env) {
			g := e.guards(t)
			list := e.places(t, n, numbered)
			e.allowOps(16) // in a read
			g.add(list...)
			time.Sleep(3 * every)
			synctest.Wait()
			e.requireWatchers(t, n)
			for _, call := range e.c.Calls(fakeetcd.Watch) {
				require.Empty(t, call.Request.(*pb.WatchCreateRequest).RangeEnd)
			}
			g.requireNotices(t)

			var want []notice
			for i, p := range list {
				if i%2 == 0 {
					require.True(t, e.srv.Delete(p.Key))
					want = append(want, deleted(p))
				} else {
					e.srv.Put(p.Key, "x")
					want = append(want, overwritten(p))
				}
			}
			synctest.Wait()
			require.Len(t, g.soFar(), min(n, mostWatched), "at once")
			time.Sleep(every)
			synctest.Wait()
			g.requireNotices(t, want...)
			require.Empty(t, g.warned())
			g.remove(list...)
			synctest.Wait()
			require.Zero(t, e.srv.Watchers())
		})
	}
}

// When watches become free, the keys without one get them.
func TestGuards_fewAgain(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		g := e.guards(t)
		first := g.guarded(t, mostWatched, numbered)
		others := g.guarded(t, 10, scattered)
		e.requireWatchers(t, mostWatched)
		g.remove(first[3:]...)
		time.Sleep(every)
		synctest.Wait()
		e.requireWatchers(t, 13)
		calls := e.requests()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		require.Equal(t, calls, e.requests(), "nothing polls")
		var want []notice
		for _, p := range append(first[:3], others...) {
			require.True(t, e.srv.Delete(p.Key))
			want = append(want, deleted(p))
		}
		synctest.Wait()
		g.requireNotices(t, want...)
	})
}

// Keys beyond the limit are first read after a period. A change just after the entry is still reported within a period.
func TestGuards_withoutAWatch(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		g := e.guards(t)
		list := g.guarded(t, mostWatched+100, numbered)
		keys := 0
		for _, call := range e.c.Calls(fakeetcd.Txn) {
			if r := call.Request.(*pb.TxnRequest); len(r.Compare) == 0 {
				keys += len(r.Success)
			}
		}
		require.Equal(t, mostWatched, keys)
		for i := range 50 {
			time.Sleep(time.Duration(i) * queue.GuardAfter / 3) // at any phase of the period
			p := e.enter(t, "late/"+fmt.Sprint(i))
			g.add(p)
			require.True(t, e.srv.Delete(p.Key))
			time.Sleep(every)
			synctest.Wait()
			g.requireNotices(t, deleted(p))
			g.remove(p)
		}
		g.remove(list...)
	})
}
