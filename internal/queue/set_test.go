package queue_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
)

func (e *env) set(names ...string) []queue.Entry {
	var set []queue.Entry
	for _, name := range names {
		set = append(set, queue.NewEntry(name, e.lease, "s"))
	}
	return set
}

// A set whose answer was lost is found in its queues. If one of its keys has gone since, or is somebody else's, the
// error says so, and the entries with a revision are its own.
func TestQueue_EnterAll_again(t *testing.T) {
	for name, tc := range map[string]struct {
		meanwhile func(e *env, key string)
		want      error
		own       bool // the second one's key
	}{
		"nothing": {func(*env, string) {}, nil, true},
		"deleted": {func(e *env, key string) { e.srv.Delete(key) }, queue.ErrGone, false},
		"planted": {func(e *env, key string) { e.srv.Delete(key); e.srv.Put(key, "somebody else's") }, queue.ErrTaken, false},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			first := e.enter(t, "1")
			e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable})
			set := e.set("a", "b", "c")
			_, err := e.Queue.Enter(e.once(t.Context()), set, "x")
			require.Error(t, err)
			require.Zero(t, set[0].Rev)
			rev := e.srv.Rev()
			tc.meanwhile(e, set[1].Key)
			ahead, err := e.Queue.Enter(e.once(t.Context()), set, "x")
			require.ErrorIs(t, err, tc.want)
			require.Equal(t, []bool{true, tc.own, true}, []bool{set[0].Rev == rev, set[1].Rev == rev, set[2].Rev == rev})
			if tc.want == nil {
				require.Equal(t, make([]queue.Ahead, 3), ahead, "unknown")
				gone, err := e.Queue.Leave(e.once(t.Context()), set)
				require.NoError(t, err)
				require.Empty(t, gone)
				require.Equal(t, []string{first.Key}, e.keys())
			}
		})
	}
}

// A set that tries leaves all of its queues if somebody has entered one with other keys before it.
func TestQueue_TryEnterAll_race(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		other := e.another(t)
		e.plant(t, "a/Z", 1)
		e.mixed(t)
		e.c.Inject(fakeetcd.Get, fakeetcd.Fault{Times: 1, After: time.Second}) // the reading of the first queue by names
		set := e.set("a", "b")
		got := inBackground(e, func() ([]*mvccpb.KeyValue, error) { return e.TryEnterAll(e.once(t.Context()), set, "") })
		first, owner := other.tryEnter(t, "first")
		require.Nil(t, owner)
		keys := e.keys()
		us := receive(t, got)
		require.NoError(t, us.err)
		require.Nil(t, us.val[1])
		require.Equal(t, first.Key, string(us.val[0].Key))
		require.Equal(t, keys, e.keys())
		require.Zero(t, set[0].Rev)
	})
}

// mixed makes e notice that queue "a" has keys that are no contenders.
func (e *env) mixed(t *testing.T) {
	t.Helper()
	p, owner := e.tryEnter(t, "mixed")
	require.Nil(t, owner)
	left, err := e.Leave(e.once(t.Context()), p)
	require.NoError(t, err)
	require.True(t, left)
}

// After a lost answer to TryEnterAll, a repeated call keeps the set if it was the first everywhere, whoever has come
// since.
func TestQueue_TryEnterAll_again(t *testing.T) {
	for name, nested := range map[string]bool{"contenders alone": false, "nested names": true} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			if nested {
				e.srv.Put("a/jobs/1", "")
				e.mixed(t)
			}
			e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{
				Times: 1, Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable,
				Match: func(c fakeetcd.Call) bool { return len(c.Request.(*pb.TxnRequest).Success) >= 2 }, // its puts
			})
			set := e.set("a", "b")
			_, err := e.TryEnterAll(e.once(t.Context()), set, "x")
			require.Error(t, err)
			rev := e.srv.Rev()
			e.enter(t, "1") // after us
			owners, err := e.TryEnterAll(e.once(t.Context()), set, "x")
			require.NoError(t, err)
			require.Equal(t, make([]*mvccpb.KeyValue, 2), owners)
			require.Equal(t, rev, set[1].Rev)
		})
	}
}
