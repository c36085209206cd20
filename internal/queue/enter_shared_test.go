package queue_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
)

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
