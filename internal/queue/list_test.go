package queue_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// requests is the number of requests that e's client has sent, watches included.
func (e *env) requests() int { return len(e.c.Calls(fakeetcd.Any)) }

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

// Data whose names are numbers looks like contenders. Thousands of such keys take few requests to pass over, or more if
// the server allows few operations in a transaction.
func TestQueue_numberedData(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		for i := range 2000 {
			e.srv.Put(fmt.Sprintf("a/%d", i+1), "data")
		}
		before := e.requests()
		first := e.enter(t, "1")
		require.NoError(t, e.Await(t.Context(), first.Entry, first.ahead))
		require.Less(t, e.requests()-before, 50)
		e.allowOps(10)
		got := e.await(t.Context(), e.enter(t, "2"))
		requirePending(t, got)
		owner, err := e.Owner(e.once(t.Context()), "a/")
		require.NoError(t, err)
		require.Equal(t, first.Key, string(owner.Key))
		e.leave(t, first)
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

// Children reads at one revision, in the order of creation, and at most a page of a nested name. The second page starts at
// the very next key, here one that begins with the last key of the first page.
func TestChildren(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		var want []string
		for i := range 40 {
			want = append(want, fmt.Sprintf("n/%02d", 99-i))
			e.srv.Put(want[i], "value")
		}
		want = append(want, "n/75-x")
		e.srv.Put("n/75-x", "")
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
