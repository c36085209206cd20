package queue_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
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

// The second page starts at the very next key, here one that begins with the last key of the first page.
func TestQueue_mixed_pageEnds(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.plant(t, "a/eu/1", 1)
		oldest := queue.NewEntry("a", e.lease, "15-oldest").Key
		keys := []string{oldest}
		for i := range 16 {
			keys = append(keys, queue.NewEntry("a", e.lease, fmt.Sprintf("%02d", i)).Key)
		}
		for _, key := range keys {
			_, err := e.c.Put(t.Context(), key, "", clientv3.WithLease(e.lease))
			require.NoError(t, err)
		}
		owner, err := e.Owner(e.once(t.Context()), "a/")
		require.NoError(t, err)
		require.Equal(t, oldest, string(owner.Key))
	})
}

// Once keys of nested names have been seen, they are read without their values, not in the order of creation, and not
// compared; and most of them are skipped.
func TestQueue_nestedNamesAreCheap(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		for i := range 40 {
			e.plant(t, fmt.Sprintf("a/eu/%02d", i), 100)
		}
		e.leave(t, e.enter(t, "1"))
		calls := len(e.c.Calls(fakeetcd.Any))
		p := e.enter(t, "2")
		require.NoError(t, e.Await(t.Context(), p.Entry, p.ahead))
		e.leave(t, p)
		_, owner := e.tryEnter(t, "3")
		require.Nil(t, owner)
		pages := 0
		for _, call := range e.c.Calls(fakeetcd.Any)[calls:] {
			switch r := call.Request.(type) {
			case *pb.RangeRequest:
				pages++
				require.True(t, r.KeysOnly)
				require.Equal(t, pb.RangeRequest_NONE, r.SortOrder)
			case *pb.TxnRequest:
				for _, c := range r.Compare {
					require.Empty(t, c.RangeEnd)
				}
				for _, op := range r.Success {
					require.Nil(t, op.GetRequestRange())
				}
			}
		}
		require.LessOrEqual(t, pages, 2+3, "two for the nested name and the keys after it, in each of two readings; and one for keys that came meanwhile")
	})
}

// Planted keys that look like contenders are recognised by comparisons, which need no values.
func TestQueue_plantedContenders(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.plant(t, fmt.Sprintf("a/%x-1", int64(e.lease)), 20)
		first := e.enter(t, "1")
		e.plant(t, fmt.Sprintf("a/%x-z", int64(e.lease)), 20)
		second, third := e.enter(t, "2"), e.enter(t, "3")
		ahead, err := e.Ahead(e.once(t.Context()), second.Entry)
		require.NoError(t, err)
		require.Equal(t, first.Key, ahead.Key)
		ahead, err = e.Ahead(e.once(t.Context()), third.Entry)
		require.NoError(t, err)
		require.Equal(t, second.Key, ahead.Key, "the nearest")
		e.leave(t, first)
		ahead, err = e.Ahead(e.once(t.Context()), second.Entry)
		require.NoError(t, err)
		require.True(t, ahead.None)
		require.True(t, e.srv.Delete(second.Key))
		_, err = e.Ahead(e.once(t.Context()), second.Entry)
		require.ErrorIs(t, err, queue.ErrGone)
	})
}

// Data whose names are numbers looks like contenders. Thousands of such keys take few requests to pass over, or more if
// the server allows few operations in a transaction.
func TestQueue_numberedData(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		for i := range 2000 {
			e.srv.Put(fmt.Sprintf("a/%d", i+1), "data")
		}
		before := e.requests()
		first := e.enter(t, "1")
		ahead, err := e.Ahead(e.once(t.Context()), first.Entry)
		require.NoError(t, err)
		require.True(t, ahead.None)
		require.Less(t, e.requests()-before, 50)
		e.allowOps(10)
		second := e.enter(t, "2")
		ahead, err = e.Ahead(e.once(t.Context()), second.Entry)
		require.NoError(t, err)
		require.Equal(t, first.Key, ahead.Key)
		owner, err := e.Owner(e.once(t.Context()), "a/")
		require.NoError(t, err)
		require.Equal(t, first.Key, string(owner.Key))
	})
}

// In a queue with nested names, a key between the owner's and the waiter's is off its lease, and is put back on it
// while the owner holds: it is a contender again, before the waiter.
func TestQueue_Await_putBackBehindTheOwner(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		other := e.another(t)
		e.srv.Put("a/eu/1", "")
		owner, next := other.enter(t, "1"), other.enter(t, "2")
		e.srv.Put(next.Key, "off its lease")
		ours := e.enter(t, "3")
		got := e.await(t.Context(), ours)
		_, err := other.c.Put(t.Context(), next.Key, "back", clientv3.WithLease(other.lease))
		require.NoError(t, err)
		other.leave(t, owner)
		synctest.Wait()
		requirePending(t, got)
		other.leave(t, next)
		require.NoError(t, receive(t, got).err)
	})
}

// A contender that leaves between the reading of the names and that of the leases is not taken for a key that is no
// contender, which somebody would search for in vain.
func TestQueue_mixed_leavesMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		other := e.another(t)
		e.srv.Put("a/nested/x", "")
		first := other.enter(t, "1")
		e.c.Inject(fakeetcd.Get, fakeetcd.Fault{Times: 1, After: time.Second})
		tried := inBackground(e, func() (queue.Entry, error) {
			entered, _, err := e.TryEnter(e.once(t.Context()), e.entry("us"), "us")
			return entered, err
		})
		other.leave(t, first)
		got := receive(t, tried)
		require.NoError(t, got.err)
		require.NotZero(t, got.val.Rev)
		require.Empty(t, e.reported)
	})
}

// Children reads at one revision, in the order of creation, and at most a page of a nested name.
func TestChildren(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		var want []string
		for i := range 40 {
			want = append(want, fmt.Sprintf("n/%02d", 99-i))
			e.srv.Put(want[i], "value")
		}
		for i := range 5000 {
			e.srv.Put(fmt.Sprintf("n/75/%d", i), "nested")
		}
		e.srv.Put("n/~own", "")
		rev := e.srv.Rev()
		e.c.Inject(fakeetcd.Get, fakeetcd.Fault{Times: 1, OnAnswer: func() { e.srv.Delete("n/99") }})
		keys, seen, err := queue.Children(e.once(t.Context()), "n/")
		require.NoError(t, err)
		require.Equal(t, rev, seen)
		var got []string
		for _, kv := range keys {
			require.Empty(t, kv.Value)
			got = append(got, string(kv.Key))
		}
		require.Equal(t, want, got)
		require.Len(t, e.c.Calls(fakeetcd.Get), 3)
	})
}

// A compaction between two pages is no failure if the caller has not asked for a revision.
func TestChildren_compacted(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		for i := range 40 {
			e.srv.Put(fmt.Sprintf("n/1%02d", i), "")
		}
		e.c.Inject(fakeetcd.Get, fakeetcd.Fault{Times: 1, OnAnswer: func() { e.srv.Delete("n/100"); _ = e.srv.Compact(e.srv.Rev()) }})
		keys, seen, err := queue.Children(e.once(t.Context()), "n/")
		require.NoError(t, err)
		require.Equal(t, e.srv.Rev(), seen)
		require.Len(t, keys, 39)
	})
}
