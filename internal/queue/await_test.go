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

// Whoever is not in the queue has no turn to wait for.
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

// A watch that is not confirmed gives up its stream, and with it the others that were on it.
func TestQueue_Await_watchIsNotConfirmed(t *testing.T) {
	bubble(t, func(e *env) {
		t := e.t
		first := e.enter(t, "1")
		second := e.enter(t, "2")
		two := e.await(t.Context(), second)
		e.c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{Times: 1, After: time.Hour})
		e.leave(t, first)
		e.at(time.Minute)
		requirePending(t, two)
		e.guards(t).add(second) // its watch's confirmation comes after the event that is stuck
		got := receive(t, two)
		require.NoError(t, got.err)
		require.LessOrEqual(t, got.at, time.Minute+queue.GuardAfter+5*time.Second)
		require.Greater(t, got.at, time.Minute+queue.GuardAfter+5*time.Second/2)
	})
}
