package queue_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

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
	e.leave(t, place{Entry: p})
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

// together makes the calls while the line's lane is taken, so that they share commits as far as the line allows, in
// their order. When all have returned, it returns the number of comparisons of the first request that carried
// several.
func (e *env) together(t *testing.T, calls ...func(context.Context)) (comparisons int) {
	t.Helper()
	release := make(chan struct{})
	e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Until: release})
	var all sync.WaitGroup
	run := func(call func(context.Context)) {
		all.Go(func() { call(t.Context()) })
		synctest.Wait()
	}
	nothing := func(ctx context.Context) { _, _ = e.Leave(e.once(ctx), queue.NewEntry("nobody", e.lease, "x")) }
	run(nothing)
	before := len(e.c.Calls(fakeetcd.Txn))
	for _, call := range calls {
		run(call)
	}
	require.Len(t, e.c.Calls(fakeetcd.Txn), before, "the calls wait for a lane")
	close(release)
	all.Wait()
	for _, call := range e.c.Calls(fakeetcd.Txn)[before:] {
		r := call.Request.(*pb.TxnRequest)
		n := len(r.Compare)
		for _, op := range r.Success {
			n += len(op.GetRequestTxn().GetCompare())
		}
		if n > 1 {
			return n
		}
	}
	return 0
}

func (e *env) entering(name, suffix string, into *place) func(context.Context) {
	return func(ctx context.Context) {
		entered, ahead, err := e.Enter(e.once(ctx), queue.NewEntry(name, e.lease, suffix), suffix)
		if err == nil {
			*into = place{entered, ahead}
		}
	}
}

// Entries of one queue never share a commit: their revisions are their order.
func TestQueue_Enter_oneQueueIsNotShared(t *testing.T) {
	for name, crowd := range map[string]bool{"somebody is expected": true, "nobody is": false} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			if crowd {
				e.meet(t)
			}
			var one, two, three, elsewhere place
			e.together(t, e.entering("a", "1", &one), e.entering("a", "2", &two), e.entering("b", "1", &elsewhere), e.entering("a", "3", &three))
			require.True(t, elsewhere.ahead.None)
			list := []place{one, two, three}
			slices.SortFunc(list, func(a, b place) int { return int(a.Rev - b.Rev) })
			require.True(t, list[0].ahead.None)
			for i, before := range list[:2] {
				require.Less(t, before.Rev, list[i+1].Rev)
				requireAhead(t, list[i+1], before, i == 0)
			}
		})
	}
}

// meet makes the queue "a" count as contended, and leaves it as it was.
func (e *env) meet(t *testing.T) {
	t.Helper()
	p, q := e.enter(t, "met"), e.enter(t, "meets")
	e.leave(t, p)
	e.leave(t, q)
}

// In a shared commit all comparisons come before the operations of the others.
func TestQueue_TryEnter_sharedWithLeave(t *testing.T) {
	for name, leavesFirst := range map[string]bool{"leaves, enters": true, "enters, leaves": false} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			first := e.enter(t, "1")
			var (
				us    queue.Entry
				owner *mvccpb.KeyValue
				err   error
			)
			leave := func(ctx context.Context) { _, _ = e.Leave(e.once(ctx), first.Entry) }
			try := func(ctx context.Context) { us, owner, err = e.TryEnter(e.once(ctx), e.entry("us"), "us") }
			calls := []func(context.Context){try, leave}
			if leavesFirst {
				calls[0], calls[1] = calls[1], calls[0]
			}
			require.Equal(t, 2, e.together(t, calls...))
			require.NoError(t, err)
			if leavesFirst {
				require.Nil(t, owner)
				require.Equal(t, []string{us.Key}, e.keys())
				require.Equal(t, us.Rev, e.srv.Keys(us.Key)[0].CreateRevision)
			} else {
				require.Equal(t, first.Key, string(owner.Key))
				require.Empty(t, e.keys())
			}
		})
	}
}
