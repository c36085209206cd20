package lease_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/lease"
)

// crowd starts n callers that wait for the lock in no particular order.
func (e *env) crowd(ctx context.Context, name string, n int) <-chan acquired {
	got := make(chan acquired, n)
	for range n {
		go func() {
			l, err := e.s.Lock(ctx, name)
			got <- acquired{l, err, e.now()}
		}()
	}
	synctest.Wait()
	return got
}

// An operator deletes the holder's key. The old hold is lost, and the next caller of the session need not wait for its
// Unlock.
func TestTurns_holdersKeyIsDeleted(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		other := e.join(t)
		l := e.lock(t, "a")
		waiting := e.line(t, "a", 3)
		theirs := other.wait(t.Context(), "a")
		e.at(time.Second)
		require.True(t, e.srv.Delete(l.Key()))
		theirLock := granted(t, theirs)
		synctest.Wait()
		requireLost(t, context.Cause(l.Context()), lease.ReasonKeyDeleted)
		requirePending(t, waiting[0])
		require.Len(t, e.keys(""), 2, "the next caller stands in etcd's queue")
		require.NoError(t, theirLock.lock.Unlock(t.Context()))
		got := granted(t, waiting[0])
		require.Equal(t, time.Second, got.at)
		require.Greater(t, got.lock.Token(), l.Token())

		// The old hold's Unlock affects nobody else.
		requireLost(t, l.Unlock(t.Context()), lease.ReasonKeyDeleted)
		synctest.Wait()
		requirePending(t, waiting[1])
		requireLive(t, got.lock)
		pass(t, got.lock, waiting[1:]...)
		require.Empty(t, e.keys(""))
	})
}

// The same, if the holder's context has ended before, and its function goes on.
func TestTurns_holdersKeyIsDeleted_contextHasEnded(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, e *env){
		"asked to release": func(t *testing.T, e *env) {
			t.Helper()
			require.NoError(t, lease.Release(t.Context(), e.c.Client, "a", lease.ReleaseOptions{}))
		},
		"held for too long": func(*testing.T, *env) {},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				l, err := e.s.Lock(t.Context(), "a", lease.WithMaxHold(time.Second))
				require.NoError(t, err)
				next := e.wait(t.Context(), "a")
				end(t, e)
				e.at(2 * time.Second)
				require.Error(t, l.Err())
				requirePending(t, next)
				require.True(t, e.srv.Delete(l.Key()))
				got := granted(t, next)
				requireLost(t, l.Unlock(t.Context()), lease.ReasonKeyDeleted)
				require.NoError(t, got.lock.Unlock(t.Context()))
				require.Empty(t, e.keys(""))
			})
		})
	}
}

// An operator overwrites the holder's key, which stays: the old hold is lost, and nobody gets the lock until it is
// unlocked.
func TestTurns_holdersKeyIsOverwritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, l, waiting := startLine(t, lease.Options{}, 3)
		e.at(time.Second)
		e.srv.Put(l.Key(), "mine")
		synctest.Wait()
		requireLost(t, context.Cause(l.Context()), lease.ReasonKeyOverwritten)
		e.at(time.Minute)
		requirePending(t, waiting[0])
		requireLost(t, l.Unlock(t.Context()), lease.ReasonKeyOverwritten)
		got := granted(t, waiting[0])
		require.LessOrEqual(t, got.at, time.Minute+time.Second)
		pass(t, got.lock, waiting[1:]...)
		synctest.Wait()
		require.Empty(t, e.keys(""))
	})
}

// Of the waiters of a session, only the one whose key is deleted reports a loss. It may learn of that from a read of
// the queue, before its key is watched, or from the watch.
func TestTurns_waitersKeyIsDeleted(t *testing.T) {
	for name, at := range map[string]time.Duration{"before the watch": watchAfter / 2, "watched": time.Second} {
		inBubble(t, name, func(t *testing.T) {
			a := start(t, lease.Options{})
			b, c := a.join(t), a.join(t)
			l := a.lock(t, "a")
			ahead := b.wait(t.Context(), "a")
			first := c.wait(t.Context(), "a")
			key := a.srv.Leases()[2].Keys[0]
			waiting := c.line(t, "a", 3)
			a.at(at - 1)
			require.True(t, a.srv.Delete(key))
			require.NoError(t, l.Unlock(t.Context())) // first looks at the queue now
			got := receive(t, first)
			require.Equal(t, key, lossOf(t, got.err, lease.ReasonKeyDeleted).Key)
			require.LessOrEqual(t, got.at, at)
			pass(t, receive(t, ahead).lock, waiting...)
			require.Empty(t, a.keys(""))
		})
	}
}

// If the lease is lost, every caller that waits on it fails at once.
func TestTurns_leaseIsLost(t *testing.T) {
	for name, tc := range map[string]struct {
		lose   func(*env)
		at     time.Duration
		reason lease.Reason
	}{
		"revoked": {func(e *env) { _ = e.srv.Revoke(e.s.Status().LeaseID) }, time.Second, lease.ReasonLeaseGone},
		"cut off": {func(e *env) { e.c.Cut() }, usable, lease.ReasonDeadlinePassed},
	} {
		inBubble(t, name, func(t *testing.T) {
			const waiters = 1000
			e := start(t, lease.Options{})
			held := e.lock(t, "a")
			waiting := e.crowd(t.Context(), "a", waiters)
			e.at(time.Second)
			tc.lose(e)
			for range waiters {
				got := receive(t, waiting)
				requireLost(t, got.err, tc.reason)
				require.Equal(t, tc.at, got.at)
			}
			requireLost(t, context.Cause(held.Context()), tc.reason)
			e.c.Restore()
			again := e.wait(t.Context(), "a") // on a new lease, in an order of its own
			e.at(2 * ttl)
			got := granted(t, again)
			require.Equal(t, []string{got.lock.Key()}, e.keys(""))
			requireLost(t, held.Unlock(t.Context()), tc.reason)
			pass(t, got.lock, e.line(t, "a", 3)...)
			require.Empty(t, e.keys(""))
		})
	}
}
