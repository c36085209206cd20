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

// span is the range of a watch.
type span struct{ low, high string }

func watched(call fakeetcd.Call) span {
	r := call.Request.(*pb.WatchCreateRequest)
	return span{string(r.Key), string(r.RangeEnd)}
}

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
		for _, pause := range []time.Duration{0, 13 * time.Millisecond} {
			t.Run(fmt.Sprint(n, pause), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { fewOrMany(t, n, pause) })
			})
		}
	}
}

func fewOrMany(t *testing.T, n int, pause time.Duration) {
	t.Helper()
	e := start(t)
	g := e.guards(t)
	list := e.places(t, n, numbered)
	for _, p := range list {
		g.add(p)
		time.Sleep(pause)
	}
	time.Sleep(time.Second)
	synctest.Wait()
	e.requireWatchers(t, n)
	for _, call := range e.c.Calls(fakeetcd.Watch) {
		require.Empty(t, watched(call).high)
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
}

// When watches become free, the keys without one get them.
func TestGuards_fewAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
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

// Around the limit, the cost depends on the entries that come and not on those that are there.
func TestGuards_changesAreCheap(t *testing.T) {
	for _, n := range []int{16, mostWatched, mostWatched + 20} {
		inBubble(t, fmt.Sprint(n), func(t *testing.T) {
			e := start(t)
			g := e.guards(t)
			k := 0
			name := func(int) string { k++; return numbered(k) }
			list := g.guarded(t, n, name)
			watches, reads := len(e.c.Calls(fakeetcd.Watch)), len(e.c.Calls(fakeetcd.Txn))
			const changes = 200
			for range changes {
				g.remove(list[0])
				list = append(list[1:], e.places(t, 1, name)...)
				g.add(list[n-1])
				time.Sleep(300 * time.Millisecond)
			}
			require.LessOrEqual(t, len(e.c.Calls(fakeetcd.Watch))-watches, changes)
			keys := 0
			for _, call := range e.c.Calls(fakeetcd.Txn)[reads:] {
				if r := call.Request.(*pb.TxnRequest); len(r.Compare) == 0 {
					keys += len(r.Success)
				}
			}
			require.LessOrEqual(t, keys, 2*changes+6*max(0, n-mostWatched), "each key when it comes and when it is watched, and without a watch once in a period")
		})
	}
}

// Keys beyond the limit are first read after a period. A change just after the entry is still reported within a period.
func TestGuards_withoutAWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
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

// Keys are read in flat transactions that change nothing, after their watches exist.
func TestGuards_reads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		g := e.guards(t)
		before := len(e.c.Calls(fakeetcd.Txn)) + mostWatched
		list := g.guarded(t, mostWatched, numbered)
		first := e.c.Calls(fakeetcd.Watch)[0]
		read := make(map[string]bool)
		for _, call := range e.c.Calls(fakeetcd.Txn)[before:] {
			r := call.Request.(*pb.TxnRequest)
			require.Empty(t, r.Compare)
			require.LessOrEqual(t, len(r.Success), 128)
			require.False(t, call.Sent.Before(first.Answered))
			for _, op := range r.Success {
				require.True(t, op.GetRequestRange().KeysOnly)
				require.Empty(t, op.GetRequestRange().RangeEnd)
				read[string(op.GetRequestRange().Key)] = true
			}
		}
		require.Len(t, read, len(list))
	})
}

// Each entry is watched soon after its own GuardAfter, though one timer serves all of them.
func TestGuards_watchedSoonAfterTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		g := e.guards(t)
		began := make(map[string]time.Time)
		for i := range 15 {
			p := e.enter(t, string(rune('A'+i)))
			began[p.Key] = time.Now()
			g.add(p)
			time.Sleep(17 * time.Millisecond)
		}
		time.Sleep(time.Second)
		watches := e.c.Calls(fakeetcd.Watch)
		require.Len(t, watches, 15)
		for i, call := range watches {
			if i > 0 && !call.Sent.Equal(watches[i-1].Sent) {
				require.GreaterOrEqual(t, call.Sent.Sub(watches[i-1].Sent), queue.GuardAfter/10, "entries of about the same age share a tick")
			}
			age := call.Sent.Sub(began[watched(call).low])
			require.GreaterOrEqual(t, age, queue.GuardAfter)
			require.LessOrEqual(t, age, queue.GuardAfter+queue.GuardAfter/10)
		}
	})
}
