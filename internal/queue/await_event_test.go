package queue_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// requests is the number of requests that e's client has sent, watches included.
func (e *env) requests() int { return len(e.c.Calls(fakeetcd.Any)) }

// In a long queue the waiter waits for the end of the last key but one, and reads the queue then, a turn early. So
// the end of the last key is its turn without another request.
func TestQueue_Await_readsATurnEarly(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		other := e.another(t)
		first, second, third := other.enter(t, "1"), other.enter(t, "2"), other.enter(t, "3")
		fourth := e.enter(t, "4")
		four := e.await(t.Context(), fourth)
		before := e.requests()
		other.leave(t, first)
		e.at(time.Second)
		require.Equal(t, before, e.requests())
		other.leave(t, second)
		synctest.Wait()
		require.Equal(t, before+2, e.requests(), "a watch on the last, and a read under it")
		requirePending(t, four)
		before = e.requests()
		other.leave(t, third)
		require.NoError(t, receive(t, four).err)
		require.Equal(t, before, e.requests())
	})
}

// The nearest contender goes before the watch on it exists.
func TestQueue_Await_predecessorGoesBeforeTheWatch(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		first := e.enter(t, "1")
		second := e.enter(t, "2")
		e.leave(t, first)
		before := e.requests()
		got := receive(t, e.await(t.Context(), second))
		require.NoError(t, got.err)
		require.Zero(t, got.at)
		require.Equal(t, before+2, e.requests(), "a watch, and a read under it")
	})
}

// behind is a watcher on a member that lags: its watches begin at a past revision.
type behind struct {
	clientv3.Watcher

	rev int64
}

func (b behind) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	return b.Watcher.Watch(ctx, key, append(opts, clientv3.WithRev(b.rev))...)
}

// Keys are used again. The event of an earlier owner's end is not that of this one's.
func TestQueue_Await_staleEvent(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		other := e.another(t)
		earlier := other.enter(t, "1")
		other.leave(t, earlier)
		first := other.enter(t, "1")
		require.Equal(t, earlier.Key, first.Key)
		second := e.enter(t, "2")
		e.c.Watcher = behind{e.c.Watcher, earlier.Rev}
		two := e.await(t.Context(), second)
		e.at(time.Minute) // the fake sends past events within 100 ms
		requirePending(t, two)
		before := e.requests()
		other.leave(t, first)
		got := receive(t, two)
		require.NoError(t, got.err)
		require.Equal(t, time.Minute, got.at)
		require.Equal(t, before, e.requests())
	})
}

// After a watch has broken, a read shows what has happened. Then an event is enough again.
func TestQueue_Await_watchBreaks(t *testing.T) {
	for name, breaks := range map[string]func(*env){
		"its stream ends":   func(e *env) { e.c.BreakWatches(rpctypes.ErrGRPCNoLeader) },
		"its stream hangs":  func(e *env) { e.Conn.Streams(e.Bound).Suspect() },
		"it is compacted":   func(e *env) { e.compact() },
		"its client is cut": func(e *env) { e.c.Cut(); e.Conn.Streams(e.Bound).Suspect() },
	} {
		for _, meanwhile := range []bool{false, true} {
			bubbleOf(t, name, func(t *testing.T, e *env) {
				other := e.another(t)
				first := other.enter(t, "1")
				second := e.enter(t, "2")
				two := e.await(t.Context(), second)
				if meanwhile { // the event is under way and gets lost
					e.c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{Times: 1, After: time.Hour})
					other.leave(t, first)
					synctest.Wait()
					requirePending(t, two)
				}
				breaks(e)
				e.at(time.Second)
				e.c.Restore()
				e.at(2 * time.Second)
				if !meanwhile {
					requirePending(t, two)
					require.Equal(t, 1, e.srv.Watchers())
					before := e.requests()
					other.leave(t, first)
					require.Equal(t, 2*time.Second, receive(t, two).at)
					require.Equal(t, before, e.requests())
					return
				}
				got := receive(t, two)
				require.NoError(t, got.err)
				require.Less(t, got.at, 1200*time.Millisecond)
			})
		}
	}
}

// compact breaks the client's watches, and compacts the history that it would need to resume them.
func (e *env) compact() {
	e.c.Cut()
	e.c.BreakWatches(fakeetcd.ErrUnavailable)
	e.srv.Put("x", "")
	_ = e.srv.Compact(e.srv.Put("x", "")) // fails only if that revision is already compacted
	e.c.Restore()
}
