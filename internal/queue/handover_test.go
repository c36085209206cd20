package queue_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/fakeetcd"
)

func (e *env) handOver(t *testing.T, p place, suffix string) (bool, place) {
	t.Helper()
	done, next, ahead, err := e.HandOver(e.once(t.Context()), p.Entry, e.entry(suffix), suffix)
	require.NoError(t, err)
	return done, place{next, ahead}
}

// One request deletes the owner's key, puts that of the next caller of its process at the end, and so gives the turn
// to the first waiter.
func TestQueue_HandOver(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		other := e.another(t)
		first := e.enter(t, "1")
		second, third := other.enter(t, "2"), other.enter(t, "3")
		two := other.await(t.Context(), second)
		rev, before := e.srv.Rev(), e.requests()
		done, next := e.handOver(t, first, "0") // its key sorts first
		require.True(t, done)
		require.Equal(t, before+1, e.requests())
		require.Equal(t, rev+1, e.srv.Rev(), "in one revision")
		require.Equal(t, rev+1, next.Rev)
		requireAhead(t, next, third, false)
		require.NoError(t, receive(t, two).err)
		require.Equal(t, []string{next.Key, second.Key, third.Key}, e.keys())
		kv := e.srv.Keys(next.Key)[0]
		require.Equal(t, next.Rev, kv.CreateRevision)
		require.Equal(t, e.lease, clientv3.LeaseID(kv.Lease))
		require.Equal(t, "0", string(kv.Value))

		last := e.await(t.Context(), next)
		other.leave(t, second)
		requirePending(t, last)
		other.leave(t, third)
		require.NoError(t, receive(t, last).err)
	})
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

// A repeated attempt recognises what the first one has done, whatever happened meanwhile, and changes nothing.
func TestQueue_HandOver_again(t *testing.T) {
	for name, tc := range map[string]struct {
		meanwhile func(*env)
		known     bool // that it was done
	}{
		"nothing":                  {func(*env) {}, true},
		"somebody has come":        {func(e *env) { e.srv.Put("a/zz", "") }, true},
		"next's key was deleted":   {func(e *env) { e.srv.Delete(e.entry("2").Key) }, false},
		"next's was overwritten":   {func(e *env) { e.srv.Put(e.entry("2").Key, "x") }, false},
		"its own key is another's": {func(e *env) { e.srv.Put(e.entry("1").Key, "x") }, true},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			p := e.enter(t, "1")
			e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable})
			done, next, ahead, err := e.HandOver(e.once(t.Context()), p.Entry, e.entry("2"), "2")
			require.Error(t, err)
			require.False(t, done)
			require.Equal(t, e.entry("2"), next)
			require.Zero(t, ahead)
			require.Equal(t, []string{next.Key}, e.keys(), "it was done")
			entered := e.srv.Rev()
			tc.meanwhile(e)
			rev := e.srv.Rev()
			done, again := e.handOver(t, p, "2")
			require.Equal(t, tc.known, done)
			if done {
				require.Equal(t, entered, again.Rev)
				require.Zero(t, again.ahead)
			}
			require.Equal(t, rev, e.srv.Rev())
		})
	}
}
