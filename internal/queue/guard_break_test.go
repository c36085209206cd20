package queue_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// The next watch may not be confirmed for long, on a sick endpoint. A read reports what the broken one has missed,
// without waiting for it.
func TestGuards_nextWatchHangs(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
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
		bubbleOf(t, name, func(t *testing.T, e *env) {
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
	bubble(t, func(t *testing.T, e *env) {
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

// A read may take long, on an endpoint that does not answer. The events of a watch on another endpoint must not wait
// for it.
func TestGuards_eventsDuringARead(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		g := e.guards(t)
		list := g.guarded(t, 100, numbered)
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Before: time.Minute})
		e.c.BreakWatches(rpctypes.ErrGRPCNoLeader)
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

// An entry that was removed is told nothing any more, though a read of its key or an event is on its way.
func TestGuards_toldNothingOnceRemoved(t *testing.T) {
	bubbleOf(t, "a read", func(t *testing.T, e *env) {
		g := e.guards(t)
		p := g.guarded(t, 1, numbered)[0]
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Before: time.Second})
		e.c.BreakWatches(rpctypes.ErrGRPCNoLeader)
		synctest.Wait()
		g.remove(p)
		e.leave(t, p)
		time.Sleep(2 * time.Second)
		g.requireNotices(t)
	})
	bubbleOf(t, "an event", func(t *testing.T, e *env) {
		g := e.guards(t)
		for i := range 50 { // which of the event and the end of the watch is noticed first is random
			p, told := e.places(t, 1, numbered)[0], 0
			one := &queue.Guarded{Entry: p.Entry}
			one.Ended = func(queue.End) {
				told++
				g.Remove(one)
			}
			g.Add(one)
			time.Sleep(time.Second)
			e.srv.Put(p.Key, "x")
			require.True(t, e.srv.Delete(p.Key))
			synctest.Wait()
			require.Equal(t, 1, told, "round %d", i)
		}
	})
}
