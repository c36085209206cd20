package queue_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// The end of a key while its watch is broken, or while the client is cut off, is reported once it is watched again.
func TestGuards_watchBreaks(t *testing.T) {
	for name, breaks := range map[string]func(*env){
		"its stream ends":       func(e *env) { e.c.BreakWatches(rpctypes.ErrGRPCNoLeader) },
		"its stream is resumed": func(e *env) { e.c.BreakWatches(fakeetcd.ErrUnavailable) },
		"its stream hangs":      func(e *env) { e.Conn.Streams(e.Bound).Suspect() },
		"it is compacted":       func(e *env) { e.compact() },
		"it is not opened at once": func(e *env) {
			e.c.Inject(fakeetcd.Watch, fakeetcd.Fault{Times: 5, Err: rpctypes.ErrGRPCNoLeader})
			e.Conn.Streams(e.Bound).Suspect()
		},
	} {
		for _, n := range []int{1, 100, 300} {
			inBubble(t, fmt.Sprint(name, n), func(t *testing.T) {
				e := start(t)
				g := e.guards(t)
				list := g.guarded(t, n, numbered)
				lost := list[n/2]
				e.c.Cut()
				require.True(t, e.srv.Delete(lost.Key))
				breaks(e)
				e.c.Cut()
				time.Sleep(time.Second)
				g.requireNotices(t)
				e.c.Restore()
				time.Sleep(10 * time.Second)
				synctest.Wait()
				g.requireNotices(t, deleted(lost))
				e.requireWatchers(t, n)

				// All are guarded again, by events.
				require.Empty(t, g.warned())
				g.remove(lost)
				var want []notice
				for _, p := range list {
					if p != lost {
						e.srv.Put(p.Key, "")
						want = append(want, overwritten(p))
					}
				}
				time.Sleep(every)
				synctest.Wait()
				g.requireNotices(t, want...)
			})
		}
	}
}

// The next watch may not be confirmed for long, on a sick endpoint. A read reports what the broken one has missed,
// without waiting for it.
func TestGuards_nextWatchHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		g := e.guards(t)
		list := g.guarded(t, 3, numbered)
		e.c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{After: time.Hour}) // these events are lost with the stream
		require.True(t, e.srv.Delete(list[0].Key))
		e.c.Inject(fakeetcd.Watch, fakeetcd.Fault{Before: time.Hour})
		e.c.BreakWatches(rpctypes.ErrGRPCNoLeader)
		time.Sleep(time.Second)
		synctest.Wait()
		g.requireNotices(t, deleted(list[0]))
	})
}

// A watch that is refused each time is opened again after pauses, and the keys are read in each pause.
func TestGuards_doNotSpin(t *testing.T) {
	for name, fault := range map[string]fakeetcd.Fault{
		"no leader": {Err: rpctypes.ErrGRPCNoLeader}, "compacted": {Err: rpctypes.ErrGRPCCompacted},
	} {
		inBubble(t, name, func(t *testing.T) {
			e := start(t)
			g := e.guards(t)
			list := e.places(t, 40, numbered)
			remove := e.c.Inject(fakeetcd.Watch, fault)
			reads := len(e.c.Calls(fakeetcd.Txn))
			g.add(list...)
			e.at(time.Minute)
			watches := len(e.c.Calls(fakeetcd.Watch))
			require.LessOrEqual(t, len(e.c.Calls(fakeetcd.Txn))-reads, 3*watches)
			require.Zero(t, e.srv.Watchers())
			remove()
			e.at(time.Minute + 3*time.Second)
			e.requireWatchers(t, 40)
			require.Less(t, watches/e.srv.Watchers(), 150)
			require.Greater(t, watches/e.srv.Watchers(), 20)
		})
	}
}

// A watch on a member that lags may show an earlier key of the same name, or the entry's own put.
func TestGuards_staleEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		g := e.guards(t)
		earlier := e.enter(t, "1")
		e.srv.Put(earlier.Key, "x")
		e.leave(t, earlier)
		p := e.enter(t, "1")
		require.Equal(t, earlier.Key, p.Key)
		e.c.Watcher = behind{e.c.Watcher, earlier.Rev}
		g.add(p)
		e.at(time.Minute)
		g.requireNotices(t)
		require.True(t, e.srv.Delete(p.Key))
		synctest.Wait()
		g.requireNotices(t, deleted(p))
	})
}

// A key is used again, and the event of the earlier entry's end comes late.
func TestGuards_keyIsUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		g := e.guards(t)
		list := g.guarded(t, 20, numbered)
		e.c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{After: time.Second})
		earlier := g.byPlace[list[3].Key]
		g.remove(list[3])
		e.leave(t, list[3])
		again := e.places(t, 1, func(int) string { return numbered(3) })[0]
		require.Equal(t, list[3].Key, again.Key)
		g.add(again)
		time.Sleep(5 * time.Second)
		g.Remove(earlier) // again, which does not affect the present entry
		g.requireNotices(t)
		require.True(t, e.srv.Delete(again.Key))
		time.Sleep(time.Second)
		synctest.Wait()
		g.requireNotices(t, deleted(again))
	})
}

// The server may allow fewer operations in a transaction than by default.
func TestGuards_fewOperations(t *testing.T) {
	for _, limit := range []int{1, 10, 99} {
		inBubble(t, fmt.Sprint(limit), func(t *testing.T) {
			e := start(t)
			g := e.guards(t)
			list := e.places(t, 300, numbered)
			e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{
				Err:   rpctypes.ErrGRPCTooManyOps,
				Match: func(c fakeetcd.Call) bool { return len(c.Request.(*pb.TxnRequest).Success) > limit },
			})
			g.add(list...)
			time.Sleep(queue.GuardAfter - 1)
			var want []notice
			for i, p := range list { // the reads have to find these
				if i%2 == 0 {
					require.True(t, e.srv.Delete(p.Key))
					want = append(want, deleted(p))
				}
			}
			before := len(e.c.Calls(fakeetcd.Txn))
			time.Sleep(every)
			synctest.Wait()
			g.requireNotices(t, want...)
			require.Empty(t, g.warned())
			e.requireWatchers(t, 300)
			refused := 0
			for _, call := range e.c.Calls(fakeetcd.Txn)[before:] {
				if call.Err != nil {
					refused++
				}
			}
			require.LessOrEqual(t, refused, 2*300)
		})
	}
}

// A read may take long, on an endpoint that does not answer. The events of a watch on another endpoint must not wait
// for it.
func TestGuards_eventsDuringARead(t *testing.T) {
	for name, cause := range map[string]func(*testing.T, *guards){
		"of new entries": func(t *testing.T, g *guards) {
			t.Helper()
			other := g.e.another(t)
			for i := range 99 { // in each of the watches
				entered, _, err := other.Enter(other.once(t.Context()), queue.NewEntry(numbered(i), g.e.lease, "y"), "")
				require.NoError(t, err)
				g.add(place{Entry: entered})
			}
		},
		"after a break": func(_ *testing.T, g *guards) { g.e.c.BreakWatches(rpctypes.ErrGRPCNoLeader) },
	} {
		inBubble(t, name, func(t *testing.T) {
			e := start(t)
			g := e.guards(t)
			list := g.guarded(t, 100, numbered)
			e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Before: time.Minute})
			cause(t, g)
			time.Sleep(time.Second)
			var want []notice
			for _, p := range list {
				require.True(t, e.srv.Delete(p.Key))
				want = append(want, deleted(p))
			}
			synctest.Wait()
			g.requireNotices(t, want...)
		})
	}
}

// Entries that are added while others are being read are read too.
func TestGuards_addedDuringARead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		g := e.guards(t)
		g.guarded(t, 20, func(i int) string { return numbered(10 * i) })
		between := e.places(t, 20, func(i int) string { return numbered(10*i - 5) })[1:]
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Before: 2 * time.Second})
		var want []notice
		for _, p := range between {
			g.add(p)
			require.True(t, e.srv.Delete(p.Key)) // before it is watched
			want = append(want, deleted(p))
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		g.requireNotices(t, want...)
	})
}
