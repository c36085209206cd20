package queue_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
)

func TestQueue_Await_turn(t *testing.T) {
	bubble(t, func(e *env) {
		t := e.t
		first := e.enter(t, "1")
		second := e.enter(t, "2")
		third := e.enter(t, "3")
		require.NoError(t, e.Await(t.Context(), first.Entry, first.ahead), "it is the owner")
		two, three := e.await(t.Context(), second), e.await(t.Context(), third)
		require.Equal(t, 2, e.srv.Watchers(), "one each, on the one before")
		e.at(time.Minute)
		e.leave(t, first)
		require.Equal(t, time.Minute, receive(t, two).at, "at once")
		requirePending(t, three)
		synctest.Wait()
		require.Equal(t, 1, e.srv.Watchers())
		e.leave(t, second)
		require.NoError(t, receive(t, three).err)
		synctest.Wait()
		require.Zero(t, e.srv.Watchers())
	})
}

// The one before gives up without having been the owner: there is still the one before that.
func TestQueue_Await_predecessorGivesUp(t *testing.T) {
	bubble(t, func(e *env) {
		t := e.t
		first := e.enter(t, "1")
		second := e.enter(t, "2")
		third := e.enter(t, "3")
		three := e.await(t.Context(), third)
		e.leave(t, second)
		synctest.Wait()
		requirePending(t, three)
		require.Equal(t, 1, e.srv.Watchers())
		e.leave(t, first)
		require.NoError(t, receive(t, three).err)
	})
}

// Whatever goes between the read and the watch shows in the read that follows the watch.
func TestQueue_Await_predecessorGoesBeforeTheWatchExists(t *testing.T) {
	for name, tc := range map[string]struct {
		leave []int
		turn  bool
	}{
		"the nearest": {[]int{2}, false}, "the owner": {[]int{1}, false}, "both": {[]int{1, 2}, true}, "both, in turn": {[]int{2, 1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(e *env) {
				t := e.t
				other := e.another(t) // whose requests are not delayed
				first := e.enter(t, "1")
				second := e.enter(t, "2")
				third := e.enter(t, "3")
				entries := map[int]place{1: first, 2: second}
				e.c.Inject(fakeetcd.Watch, fakeetcd.Fault{Times: 1, Before: time.Second})
				three := e.await(t.Context(), third)
				for _, n := range tc.leave {
					other.leave(t, entries[n])
					delete(entries, n)
				}
				e.at(time.Second - 1)
				requirePending(t, three)
				e.at(time.Second)
				if !tc.turn {
					requirePending(t, three)
					for _, entry := range entries {
						other.leave(t, entry)
					}
				}
				got := receive(t, three)
				require.NoError(t, got.err)
				require.Equal(t, time.Second, got.at)
			})
		})
	}
}

// A predecessor that is deleted is not waited for, also when its key is there again at once.
func TestQueue_Await_predecessorIsTamperedWith(t *testing.T) {
	bubble(t, func(e *env) {
		t := e.t
		first := e.enter(t, "1")
		second := e.enter(t, "2")
		two := e.await(t.Context(), second)
		synctest.Wait()
		require.True(t, e.srv.Delete(first.Key))
		e.srv.Put(first.Key, "y")
		require.NoError(t, receive(t, two).err)
	})
}

// pain 5, in part: whoever is not in the queue has no turn to wait for.
func TestQueue_Await_ownKeyIsGone(t *testing.T) {
	bubble(t, func(e *env) {
		t := e.t
		first := e.enter(t, "1")
		second := e.enter(t, "2")
		third := e.enter(t, "3")
		three := e.await(t.Context(), third)
		require.True(t, e.srv.Delete(third.Key))
		e.leave(t, second)
		require.ErrorIs(t, receive(t, three).err, queue.ErrGone, "when it looks")
		require.ErrorIs(t, e.Await(t.Context(), third.Entry, third.ahead), queue.ErrGone)
		e.srv.Put(third.Key, "somebody else's")
		require.ErrorIs(t, e.Await(t.Context(), third.Entry, third.ahead), queue.ErrGone)
		e.leave(t, first)
		fourth := e.enter(t, "4")
		require.NoError(t, e.Await(t.Context(), fourth.Entry, fourth.ahead))
	})
}

func TestQueue_Await_isBoundedByItsContext(t *testing.T) {
	mine := errors.New("mine")
	for name, fault := range map[fakeetcd.Method]fakeetcd.Fault{
		fakeetcd.Compact: {}, // none: while it waits
		fakeetcd.Txn:     {Lose: fakeetcd.Request},
		fakeetcd.Watch:   {Lose: fakeetcd.Request},
	} {
		t.Run(name.String(), func(t *testing.T) {
			bubble(t, func(e *env) {
				t := e.t
				e.enter(t, "1")
				second := e.enter(t, "2")
				e.c.Inject(name, fault)
				ctx, cancel := context.WithTimeoutCause(t.Context(), 12*time.Second, mine)
				defer cancel()
				got := receive(t, e.await(ctx, second))
				require.ErrorIs(t, got.err, mine)
				require.NotErrorIs(t, got.err, context.DeadlineExceeded)
				require.Equal(t, 12*time.Second, got.at)
			})
		})
	}
}

// A refusal is final; what passes is waited for.
func TestQueue_Await_errors(t *testing.T) {
	bubble(t, func(e *env) {
		t := e.t
		first := e.enter(t, "1")
		second := e.enter(t, "2")
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Err: rpctypes.ErrGRPCPermissionDenied})
		require.ErrorIs(t, e.Await(t.Context(), second.Entry, second.ahead), rpctypes.ErrPermissionDenied)
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 5, Err: fakeetcd.ErrUnavailable})
		two := e.await(t.Context(), second)
		e.at(time.Second)
		requirePending(t, two)
		e.leave(t, first)
		require.NoError(t, receive(t, two).err)
	})
}

// pain 7: the watch's revision is compacted while its stream is broken.
func TestQueue_Await_compaction(t *testing.T) {
	bubble(t, func(e *env) {
		t := e.t
		other := e.another(t)
		first := e.enter(t, "1")
		second := e.enter(t, "2")
		two := e.await(t.Context(), second)
		e.c.Cut()
		e.c.BreakWatches(fakeetcd.ErrUnavailable)
		for range 5 {
			e.srv.Put("x", "")
		}
		require.NoError(t, e.srv.Compact(e.srv.Rev()))
		e.at(time.Second)
		e.c.Restore()
		e.at(2 * time.Second)
		requirePending(t, two) // it reads, and watches again
		require.Equal(t, 1, e.srv.Watchers())
		e.c.Cut()
		e.c.BreakWatches(fakeetcd.ErrUnavailable)
		other.leave(t, first)
		e.srv.Put("x", "")
		require.NoError(t, e.srv.Compact(e.srv.Rev()))
		e.at(3 * time.Second)
		e.c.Restore()
		got := receive(t, two)
		require.NoError(t, got.err)
		require.Less(t, got.at, 3200*time.Millisecond)
	})
}

// A watch that is refused each time is opened with pauses.
func TestQueue_Await_doesNotSpin(t *testing.T) {
	bubble(t, func(e *env) {
		t := e.t
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

// A key that is taken off its lease contends no more, and may stay for good: who waits behind it goes on, and is not
// disturbed by a write that leaves it on its lease.
func TestQueue_Await_keyIsTakenOffItsLease(t *testing.T) {
	bubble(t, func(e *env) {
		t := e.t
		first, second := e.enter(t, "1"), e.enter(t, "2")
		third := e.enter(t, "3")
		waits := e.await(timeout(t, time.Minute), second)
		synctest.Wait()
		before := len(e.c.Calls(fakeetcd.Txn))
		_, err := e.c.Put(t.Context(), first.Key, "proclaimed", clientv3.WithIgnoreLease())
		require.NoError(t, err)
		synctest.Wait()
		require.Empty(t, waits)
		require.Len(t, e.c.Calls(fakeetcd.Txn), before)

		_, err = e.c.Put(t.Context(), first.Key, "overwritten")
		require.NoError(t, err)
		require.NoError(t, receive(t, waits).err)
		waits = e.await(timeout(t, time.Second), third)
		require.ErrorIs(t, receive(t, waits).err, context.DeadlineExceeded, "the second is the owner now")
	})
}
