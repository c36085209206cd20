package lease_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// Callers are served in the order in which they came, with growing tokens, and at once: the watch exists before it
// is needed, in step with the store.
func TestSession_Lock_servesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := start(t, lease.Options{})
		b := a.join(t)
		a.at(time.Millisecond)
		l := a.lock(t, "a")
		var queue []<-chan acquired
		for range 5 {
			queue = append(queue, b.wait(t.Context(), "a"), a.wait(t.Context(), "a"))
		}
		token := fence.Token(0)
		for _, next := range queue {
			require.Greater(t, l.Token(), token)
			token = l.Token()
			requirePending(t, next)
			time.Sleep(time.Millisecond)
			require.NoError(t, l.Unlock(t.Context()))
			got := receive(t, next)
			require.NoError(t, got.err)
			require.Equal(t, a.now(), got.at, "no time is lost between two holders")
			l = got.lock
		}
	})
}

// A waiter costs nothing but its session's renewals.
func TestSession_Lock_idleWaiterAsksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := start(t, lease.Options{})
		b := a.join(t)
		l := a.lock(t, "a")
		next := b.wait(t.Context(), "a")
		a.at(time.Second)
		before := len(b.calls())
		require.LessOrEqual(t, len(b.c.Calls(fakeetcd.Watch)), 2)
		a.at(time.Hour)
		require.Len(t, b.calls(), before)
		asked := len(b.c.Calls(fakeetcd.Any))
		require.NoError(t, l.Unlock(t.Context()))
		require.NoError(t, receive(t, next).err)
		synctest.Wait()
		require.Len(t, b.c.Calls(fakeetcd.Any), asked, "the event is enough to be granted the lock")
	})
}

// A waiter that gives up leaves the queue, whoever stands behind it.
func TestSession_Lock_cancelledWaiterLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := start(t, lease.Options{})
		b, c := a.join(t), a.join(t)
		l := a.lock(t, "a")
		mine := errors.New("mine")
		ctx, cancel := context.WithCancelCause(t.Context())
		second := b.wait(ctx, "a")
		third := c.wait(t.Context(), "a")
		require.Len(t, a.keys(""), 3)
		a.at(time.Minute)
		cancel(mine)
		got := receive(t, second)
		require.ErrorIs(t, got.err, mine)
		require.NotErrorIs(t, got.err, lease.ErrLost)
		require.Equal(t, time.Minute, got.at)
		synctest.Wait()
		require.Len(t, a.keys(""), 2)
		requirePending(t, third) // its predecessor has gone, the holder has not
		require.NoError(t, l.Unlock(t.Context()))
		require.NoError(t, receive(t, third).err)
		require.Equal(t, lease.StateHeld, b.s.Status().State)
		a.at(time.Minute + 2*time.Second) // the watch of a short wait is kept for a second
		require.Equal(t, 1, a.srv.Watchers(), "only the holder watches its key")
	})
}

// A waiter that has lost its place learns it at once, not when its turn comes.
func TestSession_Lock_waiterLosesItsPlace(t *testing.T) {
	for name, tc := range map[string]struct {
		do     func(context.Context, *env)
		at     time.Duration
		reason lease.Reason
	}{
		"lease revoked":   {func(_ context.Context, e *env) { _ = e.srv.Revoke(e.s.Status().LeaseID) }, time.Second, lease.ReasonLeaseGone},
		"key deleted":     {func(_ context.Context, e *env) { e.srv.Delete(e.srv.Leases()[1].Keys[0]) }, time.Second, lease.ReasonKeyDeleted},
		"key overwritten": {func(_ context.Context, e *env) { e.srv.Put(e.srv.Leases()[1].Keys[0], "x") }, time.Second, lease.ReasonKeyOverwritten},
		"cut off":         {func(_ context.Context, e *env) { e.c.Cut() }, usable, lease.ReasonDeadlinePassed},
		"session closed":  {func(ctx context.Context, e *env) { _ = e.s.Close(ctx) }, time.Second, lease.ReasonSessionClosed},
		"lost its renewal": {func(_ context.Context, e *env) {
			e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Lose: fakeetcd.Request})
		}, usable, lease.ReasonDeadlinePassed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := start(t, lease.Options{})
				l := a.lock(t, "a")
				a.at(1) // a's lease is the first to expire
				b := a.join(t)
				next := b.wait(t.Context(), "a")
				b.at(time.Second)
				tc.do(t.Context(), b)
				got := receive(t, next)
				require.Equal(t, tc.at, got.at)
				requireLost(t, got.err, tc.reason)
				requireLive(t, l)
				b.c.Restore()
				b.c.Reset()
				b.at(2 * ttl)
				require.Equal(t, []string{l.Key()}, a.keys(""))
			})
		})
	}
}

// The history that a watch would need is gone, and so is the holder.
func TestSession_Lock_compactionWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := start(t, lease.Options{})
		b := a.join(t)
		l := a.lock(t, "a")
		next := b.wait(t.Context(), "a")
		b.at(time.Second)
		b.c.Cut()
		require.NoError(t, l.Unlock(t.Context()))
		for range 10 {
			a.srv.Put("other", "")
		}
		require.NoError(t, a.srv.Compact(a.srv.Rev()))
		b.c.BreakWatches(fakeetcd.ErrUnavailable)
		b.at(2 * time.Second)
		requirePending(t, next)
		b.c.Restore()
		got := receive(t, next)
		require.NoError(t, got.err)
		require.LessOrEqual(t, got.at, 2200*time.Millisecond)
		b.at(5 * time.Second)
		requireLive(t, got.lock)
		require.Equal(t, []string{got.lock.Key()}, a.keys("a"))
	})
}

// A watch on an endpoint that has fallen silent says nothing, while the renewals go to another. With each renewal
// the session probes the stream of its watches; when that has not answered for half of the TTL they are opened on another.
func TestSession_Lock_watchFallsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := start(t, lease.Options{})
		b := a.join(t)
		l := a.lock(t, "a")
		next := b.wait(t.Context(), "a")
		b.c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{Times: 1, After: time.Hour})
		a.at(time.Second)
		require.NoError(t, l.Unlock(t.Context()))
		got := receive(t, next)
		require.NoError(t, got.err)
		require.Equal(t, third+ttl/2, got.at)
		requireLive(t, got.lock)
	})
}

// The same for the watch of a lock that is held.
func TestLock_watchFallsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{})
		l := e.lock(t, "a")
		end := e.ended(l)
		e.at(time.Second)
		e.c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{Times: 1, After: time.Hour})
		require.True(t, e.srv.Delete(l.Key()))
		at := receive(t, end)
		require.Greater(t, at, third+ttl/2-1)
		require.LessOrEqual(t, at, third+ttl/2+25*time.Millisecond, "with a pause before it is watched again")
		requireLost(t, context.Cause(l.Context()), lease.ReasonKeyDeleted)
	})
}
