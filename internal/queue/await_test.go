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
	"github.com/leasefence/leasefence/internal/queue"
)

// Await fails once the entry's key is not in the queue any more.
func TestQueue_Await_ownKeyIsGone(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		first := e.enter(t, "1")
		second := e.enter(t, "2")
		third := e.enter(t, "3")
		three := e.await(t.Context(), third)
		require.True(t, e.srv.Delete(third.Key))
		e.leave(t, first)
		require.ErrorIs(t, receive(t, three).err, queue.ErrGone, "at its next read")
		require.ErrorIs(t, e.Await(t.Context(), third.Entry, third.ahead), queue.ErrGone)
		e.srv.Put(third.Key, "somebody else's")
		require.ErrorIs(t, e.Await(t.Context(), third.Entry, third.ahead), queue.ErrGone)
		e.leave(t, second)
		fourth := e.enter(t, "4")
		require.NoError(t, e.Await(t.Context(), fourth.Entry, fourth.ahead))
	})
}

// A watch that is refused each time is opened again after pauses.
func TestQueue_Await_doesNotSpin(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.enter(t, "1")
		second := e.enter(t, "2")
		before := len(e.c.Calls(fakeetcd.Txn))
		e.c.Inject(fakeetcd.Watch, fakeetcd.Fault{Err: rpctypes.ErrGRPCPermissionDenied})
		got := receive(t, e.await(timeout(t, time.Minute), second))
		require.ErrorIs(t, got.err, context.DeadlineExceeded)
		require.Less(t, len(e.c.Calls(fakeetcd.Txn)[before:]), 300)
		require.Greater(t, len(e.c.Calls(fakeetcd.Txn)[before:]), 60)
	})
}

func (e *env) awaitOwn(ctx context.Context, p place) <-chan outcome[struct{}] {
	return inBackground(e, func() (struct{}, error) { return struct{}{}, e.AwaitOwn(ctx, p.Entry, p.ahead) })
}

func (e *env) rewrite(t *testing.T, p place) {
	t.Helper()
	_, err := e.c.Put(t.Context(), p.Key, "", clientv3.WithIgnoreValue(), clientv3.WithIgnoreLease())
	require.NoError(t, err)
}

func (e *env) leaveTogether(t *testing.T, places ...place) {
	t.Helper()
	var ops []clientv3.Op
	for _, p := range places {
		ops = append(ops, clientv3.OpDelete(p.Key))
	}
	_, err := e.c.Txn(t.Context()).Then(ops...).Commit()
	require.NoError(t, err)
}

// The owner is on the waiter's own lease, which is revoked: the end of the owner's key is not the waiter's turn.
func TestQueue_Await_ownLeaseIsRevoked(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.enter(t, "1")
		ours := e.enter(t, "2")
		got := e.await(t.Context(), ours)
		require.NoError(t, e.srv.Revoke(e.lease))
		require.ErrorIs(t, receive(t, got).err, queue.ErrGone)
	})
}

// The owner's key is taken off its lease and put back on it, so it is the owner again. The contender behind it gives
// up.
func TestQueue_Await_displacedOwner(t *testing.T) {
	const keeping, kept = 1, 2 // rounds before
	for name, before := range map[string]struct {
		rounds int
		await  func(*env, context.Context, place) <-chan outcome[struct{}]
	}{
		"by watches of its own": {}, "by watches that may be kept": {keeping, (*env).await}, "by kept watches": {kept, (*env).await},
		"by kept watches that show puts": {kept, (*env).awaitOwn},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			other := e.another(t)
			for range before.rounds {
				owner, next, ours := other.enter(t, "1"), other.enter(t, "2"), e.enter(t, "3")
				got := before.await(e, t.Context(), ours)
				other.leave(t, owner)
				synctest.Wait()
				other.leave(t, next)
				require.NoError(t, receive(t, got).err)
				e.leave(t, ours)
			}
			owner, next, ours := other.enter(t, "1"), other.enter(t, "2"), e.enter(t, "3")
			got := e.await(t.Context(), ours)
			e.srv.Put(owner.Key, "off its lease")
			synctest.Wait()
			_, err := other.c.Put(t.Context(), owner.Key, "back", clientv3.WithLease(other.lease))
			require.NoError(t, err)
			other.leave(t, next)
			synctest.Wait()
			requirePending(t, got)
			other.leave(t, owner)
			require.NoError(t, receive(t, got).err)
		})
	}
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
