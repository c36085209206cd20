package queue_test

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// The key of the entry's name is somebody else's by now.
func TestQueue_Await_ownKeyIsGone(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.enter(t, "1")
		p := e.enter(t, "2")
		require.True(t, e.srv.Delete(p.Key))
		e.srv.Put(p.Key, "somebody else's")
		require.ErrorIs(t, e.Await(timeout(t, time.Minute), p.Entry, p.ahead), queue.ErrGone)
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

// rounds lets other and e take two turns, e behind other's key. In the first one e learns that the queue is brisk, so
// it keeps the watch of the second one, though the context of that wait ends.
func (e *env) rounds(t *testing.T, other *env) {
	t.Helper()
	for round := range 2 {
		theirs, ours := other.enter(t, "1"), e.enter(t, "2")
		ctx, cancel := context.WithCancel(t.Context())
		got := e.await(ctx, ours)
		time.Sleep(time.Millisecond)
		other.leave(t, theirs)
		require.NoError(t, receive(t, got).err)
		e.leave(t, ours)
		cancel()
		synctest.Wait()
		require.Equal(t, round, e.srv.Watchers())
	}
}

// behindKept starts a third round, in which e waits by its kept watch.
func (e *env) behindKept(t *testing.T, other *env) (theirs, ours place, got <-chan outcome[struct{}]) {
	t.Helper()
	e.rounds(t, other)
	theirs, ours = other.enter(t, "1"), e.enter(t, "2")
	before := e.requests()
	got = e.await(t.Context(), ours)
	require.Equal(t, before, e.requests(), "neither a watch nor a read")
	requirePending(t, got)
	return theirs, ours, got
}

// The next round takes no request: Enter has reported that the contender ahead is the owner, and the watch exists.
func TestQueue_Await_keptWatch(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		other := e.another(t)
		theirs, _, got := e.behindKept(t, other)
		at, before := e.now(), e.requests()
		other.leave(t, theirs)
		granted := receive(t, got)
		require.NoError(t, granted.err)
		require.Equal(t, at, granted.at)
		require.Equal(t, before, e.requests())
		time.Sleep(time.Second)
		synctest.Wait()
		require.Zero(t, e.srv.Watchers(), "it is not kept for ever")
	})
}

// A wait relies on a kept watch for a short time. Then it opens a new watch, which lasts, and reads the queue. The next
// waits start with that.
func TestQueue_Await_keptWatchOfALongWait(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		other := e.another(t)
		theirs, ours, got := e.behindKept(t, other)
		watches := len(e.c.Calls(fakeetcd.Watch))
		for range 3 {
			time.Sleep(queue.GuardAfter)
			synctest.Wait()
			require.Len(t, e.c.Calls(fakeetcd.Watch), watches+1)
			require.Equal(t, 1, e.srv.Watchers())
		}
		other.leave(t, theirs)
		require.NoError(t, receive(t, got).err)
		e.leave(t, ours)

		for more := range 2 {
			theirs, ours = other.enter(t, "1"), e.enter(t, "2")
			got = e.await(t.Context(), ours)
			time.Sleep(2 * queue.GuardAfter)
			require.Len(t, e.c.Calls(fakeetcd.Watch), watches+2+more)
			other.leave(t, theirs)
			require.NoError(t, receive(t, got).err)
			e.leave(t, ours)
		}
	})
}

func TestQueue_Await_keptWatchEndsWithTheLease(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.rounds(t, e.another(t))
		e.endLease()
		synctest.Wait()
		require.Zero(t, e.srv.Watchers())
	})
}

// However many names are locked, a bounded number of watches is kept, and none for long.
func TestQueue_Await_keptWatchesAreFew(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		other := e.another(t)
		for i := range 300 {
			for range 2 {
				theirs, ours := other.into(t, strconv.Itoa(i), "1"), e.into(t, strconv.Itoa(i), "1")
				got := e.await(t.Context(), ours)
				other.leave(t, theirs)
				require.NoError(t, receive(t, got).err)
				e.leave(t, ours)
			}
		}
		synctest.Wait()
		require.Equal(t, 64, e.srv.Watchers())
		time.Sleep(time.Second)
		synctest.Wait()
		require.Zero(t, e.srv.Watchers())
	})
}

// asked counts the requests that e sends during a turn, and those of them that open watches.
func (e *env) asked(turn func()) (requests, watches int) {
	requests, watches = e.requests(), len(e.c.Calls(fakeetcd.Watch))
	turn()
	synctest.Wait()
	return e.requests() - requests, len(e.c.Calls(fakeetcd.Watch)) - watches
}

// Two sessions with callers of their own take turns: each hands over to its next caller. Our first entry has found an
// empty queue, so that the queue is contended is known only from the wait.
func TestQueue_Await_keptWatchAfterHandOver(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		other := e.another(t)
		ours, theirs := e.enter(t, "0"), other.enter(t, "0")
		for round := range 6 {
			requests, watches := e.asked(func() {
				suffix := []string{"1", "0"}[round%2]
				_, next := e.handOver(t, ours, suffix)
				got := e.await(t.Context(), next)
				_, theirs = other.handOver(t, theirs, suffix)
				require.NoError(t, receive(t, got).err)
				ours = next
			})
			if round > 2 { // the first wait learns that the queue is brisk, and the other session uses two keys in turn
				require.Equal(t, []int{1, 0}, []int{requests, watches}, "round %d", round)
			}
		}
	})
}

// In a long queue the first end comes late and the second soon after it. Such a queue is not brisk: a watch that
// lasts only for shortWait would be opened for nothing.
func TestQueue_Await_longWaitThatEndsSoon(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		other := e.another(t)
		for round := range 4 {
			_, watches := e.asked(func() {
				first, second, ours := other.enter(t, "1"), other.enter(t, "2"), e.enter(t, "3")
				got := e.await(t.Context(), ours)
				time.Sleep(2 * queue.GuardAfter)
				other.leave(t, first)
				synctest.Wait()
				other.leave(t, second)
				require.NoError(t, receive(t, got).err)
				e.leave(t, ours)
			})
			require.Equal(t, 2, watches, "round %d", round)
		}
	})
}

// With four contenders in turns, the last one waits by its kept watches, and reads once, while the nearest is the
// owner. In whatever order the three before it go, its turn comes when all have gone.
func TestQueue_Await_keptWatchesOfALongQueue(t *testing.T) {
	for name, order := range map[string][]int{
		"in turn": {0, 1, 2}, "the last gives up": {0, 2, 1}, "the last first": {2, 0, 1}, "from behind": {2, 1, 0},
		"the last but one gives up": {1, 0, 2}, "both give up": {1, 2, 0},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			other := e.another(t)
			for round := range 3 {
				ahead := []place{other.enter(t, "1"), other.enter(t, "2"), other.enter(t, "3")}
				ours := e.enter(t, "4")
				before := e.requests()
				got := e.await(t.Context(), ours)
				for _, i := range order {
					requirePending(t, got)
					other.leave(t, ahead[i])
					synctest.Wait()
				}
				require.NoError(t, receive(t, got).err)
				if round > 1 && slices.IsSorted(order) {
					require.Equal(t, before+1, e.requests())
				}
				e.leave(t, ours)
			}
		})
	}
}
