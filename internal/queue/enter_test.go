package queue_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// A key of the entry's name is somebody else's, or older than the entry.
func TestQueue_Enter_taken(t *testing.T) {
	for name, tc := range map[string]struct {
		value   string
		leased  bool
		earlier bool // than the entry
		ours    bool
	}{
		"ours":            {"x", true, false, true},
		"without a lease": {"x", false, false, false},
		"another's value": {"planted", true, false, false},
		"an old one":      {"x", true, true, false},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			entry := e.entry("x")
			lease := clientv3.NoLease
			if tc.leased {
				lease = e.lease
			}
			_, err := e.c.Put(t.Context(), entry.Key, tc.value, clientv3.WithLease(lease))
			require.NoError(t, err)
			rev := e.srv.Rev()
			entry.After = rev - 1
			if tc.earlier {
				entry.After = rev
			}
			entered, ahead, err := e.Enter(e.once(t.Context()), entry, "x")
			tried, owner, tryErr := e.TryEnter(e.once(t.Context()), entry, "x")
			require.Equal(t, rev, e.srv.Rev())
			require.Zero(t, ahead)
			require.Nil(t, owner)
			if tc.ours {
				require.NoError(t, err)
				require.NoError(t, tryErr)
				entry.Rev = rev
			} else {
				require.ErrorIs(t, err, queue.ErrTaken)
				require.ErrorIs(t, tryErr, queue.ErrTaken)
			}
			require.Equal(t, []queue.Entry{entry, entry}, []queue.Entry{entered, tried})
		})
	}
}

// A proxy sends each request twice and returns the second answer: the transaction is done once, and the caller
// notices that it was.
func TestQueue_requestSentTwice(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Twice: true})
		entry, owner, err := e.TryEnter(e.once(t.Context()), queue.NewEntry("b", e.lease, "x"), "x")
		require.NoError(t, err, "the key is its own")
		require.Nil(t, owner)
		require.Equal(t, e.srv.Rev(), entry.Rev)

		first := e.enter(t, "1")
		require.Equal(t, e.srv.Rev(), first.Rev)
		second := e.enter(t, "2")
		require.Equal(t, e.srv.Rev(), second.Rev)
		done, third := e.handOver(t, first, "3")
		require.True(t, done)
		require.Equal(t, e.srv.Rev(), third.Rev)
		require.Equal(t, []string{second.Key, third.Key, entry.Key}, e.keys())
	})
}

// Enter, Leave, HandOver and TryEnter are those of the queue for one entry.
func (e *env) Enter(a *etcd.Attempt, entry queue.Entry, value string) (queue.Entry, queue.Ahead, error) {
	set := []queue.Entry{entry}
	ahead, err := e.Queue.Enter(a, set, value)
	if err != nil {
		return set[0], queue.Ahead{}, err
	}
	return set[0], ahead[0], nil
}

func (e *env) Leave(a *etcd.Attempt, entry queue.Entry) (left bool, err error) {
	gone, err := e.Queue.Leave(a, []queue.Entry{entry})
	return err == nil && len(gone) == 0, err
}

func (e *env) HandOver(a *etcd.Attempt, entry, next queue.Entry, value string) (bool, queue.Entry, queue.Ahead, error) {
	ahead, err := e.Queue.HandOver(a, entry, &next, value)
	return next.Rev != 0, next, ahead, err
}

func (e *env) TryEnter(a *etcd.Attempt, entry queue.Entry, value string) (queue.Entry, *mvccpb.KeyValue, error) {
	set := []queue.Entry{entry}
	owners, err := e.TryEnterAll(a, set, value)
	if err != nil {
		owners = []*mvccpb.KeyValue{nil}
	}
	return set[0], owners[0], err
}

func (e *env) tryEnter(t *testing.T, suffix string) (queue.Entry, *mvccpb.KeyValue) {
	t.Helper()
	entry, owner, err := e.TryEnter(e.once(t.Context()), e.entry(suffix), suffix)
	require.NoError(t, err)
	return entry, owner
}

func TestQueue_TryEnter(t *testing.T) {
	for name, tc := range map[string]struct {
		before  func(*testing.T, *env)
		owner   string // its suffix; "": we are the owner
		txns    int
		reports int
	}{
		"empty": {before: func(*testing.T, *env) {}, txns: 1},
		"locked, and others wait whose names come first": {
			before: func(t *testing.T, e *env) {
				t.Helper()
				for _, suffix := range []string{"9", "0", "1", "2"} {
					e.enter(t, suffix)
				}
			},
			owner: "9", txns: 1,
		},
		"only strays": {
			before: func(t *testing.T, e *env) { t.Helper(); e.plant(t, "a/Z", 3) },
			txns:   2, reports: 1,
		},
		"locked behind a stray": {
			before: func(t *testing.T, e *env) { t.Helper(); e.plant(t, "a/Z", 1); e.enter(t, "1") },
			owner:  "1", txns: 2, reports: 1,
		},
		"entered before, alone": {
			before: func(t *testing.T, e *env) { t.Helper(); e.enter(t, "us") },
			txns:   1,
		},
		"entered before, first": {
			before: func(t *testing.T, e *env) { t.Helper(); e.plant(t, "a/Z", 1); e.enter(t, "us"); e.enter(t, "1") },
			txns:   2, reports: 1,
		},
		"entered before, second": {
			before: func(t *testing.T, e *env) { t.Helper(); e.enter(t, "1"); e.enter(t, "us") },
			owner:  "1", txns: 3,
		},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			tc.before(t, e)
			before := len(e.c.Calls(fakeetcd.Txn))
			entry, owner := e.tryEnter(t, "us")
			require.Len(t, e.c.Calls(fakeetcd.Txn)[before:], tc.txns)
			slices.Sort(e.reported) // some are reported more than once
			require.Len(t, slices.Compact(e.reported), tc.reports)
			if tc.owner != "" {
				require.NotNil(t, owner)
				require.Equal(t, e.entry(tc.owner).Key, string(owner.Key))
				require.Equal(t, tc.owner, string(owner.Value))
				require.NotContains(t, e.keys(), entry.Key, "nothing is left")
				return
			}
			require.Nil(t, owner)
			kvs := e.srv.Keys(entry.Key)
			require.Len(t, kvs, 1)
			require.Equal(t, []int64{entry.Rev, int64(e.lease)}, []int64{kvs[0].CreateRevision, kvs[0].Lease})
		})
	}
}

// entered enters, and returns the number of operations of each request that it took.
func (e *env) entered(t *testing.T, name, suffix string) (place, []int) {
	t.Helper()
	before := e.requests()
	p := e.into(t, name, suffix)
	var ops []int
	for _, call := range e.c.Calls(fakeetcd.Any)[before:] {
		ops = append(ops, len(call.Request.(*pb.TxnRequest).Success))
	}
	return p, ops
}

// An empty queue is entered by the smallest request; one that was recently not empty, by one that reads too.
func TestQueue_Enter_contention(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		first, ops := e.entered(t, "a", "1")
		require.Equal(t, []int{1}, ops)
		second, ops := e.entered(t, "a", "2")
		require.Equal(t, []int{1, 2}, ops, "the first entry that meets another needs two")
		require.Equal(t, first.Key, second.ahead.Key)
		third, ops := e.entered(t, "a", "3")
		require.Equal(t, []int{2}, ops)
		require.Equal(t, second.Key, third.ahead.Key)
		for _, p := range []place{first, second, third} {
			e.leave(t, p)
		}

		for i := range 8 { // the queue is empty now, but does not count as empty at once
			p, ops := e.entered(t, "a", "4")
			require.Equal(t, []int{2}, ops, i)
			require.True(t, p.ahead.None)
			e.leave(t, p)
			other, ops := e.entered(t, "b", "1")
			require.Equal(t, []int{1}, ops, "another queue")
			e.leave(t, other)
		}
		p, ops := e.entered(t, "a", "5")
		require.Equal(t, []int{1}, ops)
		require.True(t, p.ahead.None)
	})
}

// The other contender has left before the second request. The next entry still takes the queue for one that is not
// empty.
func TestQueue_Enter_contentionThatHasJustEnded(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		first, _ := e.entered(t, "a", "1")
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{
			Match:     func(call fakeetcd.Call) bool { return len(call.Request.(*pb.TxnRequest).Success) == 2 },
			Times:     1,
			OnRequest: func() { e.srv.Delete(first.Key) },
		})
		second, ops := e.entered(t, "a", "2")
		require.Equal(t, []int{1, 2}, ops)
		require.True(t, second.ahead.None)
		_, ops = e.entered(t, "a", "3")
		require.Equal(t, []int{2}, ops)
	})
}

// A bounded number of queues is remembered.
func TestQueue_Enter_contentionIsForgotten(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		for i := range 1025 {
			e.srv.Put(fmt.Sprint(i)+"/x", "")
			e.into(t, fmt.Sprint(i), "1")
		}
		_, ops := e.entered(t, "0", "2")
		require.Len(t, ops, 2, "the queue was forgotten")
		_, ops = e.entered(t, "1024", "2")
		require.Len(t, ops, 1)
	})
}

func (e *env) handOver(t *testing.T, p place, suffix string) (bool, place) {
	t.Helper()
	done, next, ahead, err := e.HandOver(e.once(t.Context()), p.Entry, e.entry(suffix), suffix)
	require.NoError(t, err)
	return done, place{next, ahead}
}

// HandOver does all or nothing.
func TestQueue_HandOver_notDone(t *testing.T) {
	for name, before := range map[string]func(*env, place){
		"it is gone":         func(e *env, p place) { e.srv.Delete(p.Key) },
		"it is another's":    func(e *env, p place) { e.srv.Delete(p.Key); e.srv.Put(p.Key, "") },
		"next's is there":    func(e *env, _ place) { e.srv.Put(e.entry("2").Key, "") },
		"gone, next's there": func(e *env, p place) { e.srv.Delete(p.Key); e.srv.Put(e.entry("2").Key, "") },
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			p := e.enter(t, "1")
			before(e, p)
			rev := e.srv.Rev()
			done, next := e.handOver(t, p, "2")
			require.False(t, done)
			require.Equal(t, place{Entry: e.entry("2")}, next)
			require.Equal(t, rev, e.srv.Rev())
		})
	}
}

// Without a writer a reader takes one request, however many readers there are.
func TestQueue_Enter_readersAlone(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		var revs []int64
		for i := range 3 {
			before := e.requests()
			p, ahead, err := e.Enter(e.once(t.Context()), queue.NewReader("a", e.lease, fmt.Sprint(i)), fmt.Sprint(i))
			require.NoError(t, err)
			require.Equal(t, queue.Ahead{None: true}, ahead)
			require.Equal(t, before+1, e.requests())
			revs = append(revs, p.Rev)
		}
		require.True(t, slices.IsSorted(revs))
		again, ahead, err := e.Enter(e.once(t.Context()), queue.NewReader("a", e.lease, "0"), "0")
		require.NoError(t, err)
		require.Equal(t, revs[0], again.Rev, "after a lost answer it is found in its place")
		require.NoError(t, e.Await(t.Context(), again, ahead))
	})
}
