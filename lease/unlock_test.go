package lease_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// Unlock ends the context before it sends anything, so no work goes on under a lock that is being released.
func TestLock_Unlock_endsTheContextFirst(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		l := e.lock(t, "a")
		end := e.ended(l)
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Before: time.Second})
		require.NoError(t, l.Unlock(t.Context()))
		require.Zero(t, receive(t, end))
		require.Equal(t, time.Second, e.now())
	})
}

// asked calls a function when Err is called.
type asked struct {
	context.Context //nolint:containedctx // it is one

	err func()
}

func (c asked) Err() error {
	c.err()
	return c.Context.Err()
}

// A second call ends the context too, since the first may not have come that far.
func TestLock_Unlock_whileAnotherBegins(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		l := e.lock(t, "a")
		var again, ended error
		require.NoError(t, l.Unlock(asked{t.Context(), sync.OnceFunc(func() {
			again, ended = l.Unlock(t.Context()), l.Err()
		})}))
		require.ErrorIs(t, again, lease.ErrUnlocked)
		require.Equal(t, lease.ErrUnlocked, ended)
	})
}

// Unlock notices a loss that nothing has reported yet.
func TestLock_Unlock_findsALossByItself(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		l, other, third := e.lock(t, "a"), e.lock(t, "b"), e.lock(t, "c")
		require.True(t, e.srv.Delete(l.Key()))
		requireLost(t, l.Unlock(t.Context()), lease.ReasonKeyDeleted)
		require.ErrorIs(t, l.Unlock(t.Context()), lease.ErrUnlocked)
		requireLive(t, other)
		require.NoError(t, e.srv.Revoke(e.s.Status().LeaseID))
		requireLost(t, other.Unlock(t.Context()), lease.ReasonLeaseGone)
		requireLost(t, context.Cause(third.Context()), lease.ReasonLeaseGone) // the loss of the lease ends all its locks
		require.Zero(t, e.now())
	})
}

// Unlock deletes its own key only, and only while the key is still its own.
func TestLock_Unlock_deletesNobodyElsesKey(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		l := e.lock(t, "a")
		require.True(t, e.srv.Delete(l.Key()))
		e.srv.Put(l.Key(), "somebody else's")
		requireLost(t, l.Unlock(t.Context()), lease.ReasonKeyDeleted)
		e.at(time.Minute)
		require.Equal(t, []string{l.Key()}, e.keys(""))
	})
}

// Unlock ends with its context; the key is deleted in the background as soon as possible.
func TestLock_Unlock_isBoundedByItsContext(t *testing.T) {
	for name, back := range map[string]time.Duration{"soon": 2 * time.Second, "later": 25 * time.Second} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			l := e.lock(t, "a")
			e.c.Cut()
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errMine)
			defer cancel()
			err := l.Unlock(ctx)
			require.Equal(t, time.Second, e.now())
			require.ErrorIs(t, err, errMine)
			require.NotErrorIs(t, err, lease.ErrLost)
			require.ErrorContains(t, err, "in the background")
			require.ErrorIs(t, context.Cause(l.Context()), lease.ErrUnlocked)

			e.at(back)
			require.Len(t, e.keys(""), 1)
			e.c.Restore()
			require.NoError(t, e.srv.Await(timeout(t, attempt+time.Second), func() bool { return len(e.srv.Keys("")) == 0 }))
			synctest.Wait()
			require.Equal(t, lease.StateHeld, e.s.Status().State, "the session lives on")
			n := len(e.c.Calls(fakeetcd.Txn))
			e.at(time.Hour)
			require.Len(t, e.c.Calls(fakeetcd.Txn), n, "a confirmed deletion is not repeated")
		})
	}
}

// The context of another lock, which was unlocked before, is not the lock's own: Unlock does not wait beyond its end.
func TestLock_Unlock_onTheContextOfAnother(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		l, other := e.lock(t, "a"), e.lock(t, "b")
		require.NoError(t, other.Unlock(t.Context()))
		e.c.Cut()
		require.ErrorContains(t, l.Unlock(other.Context()), "in the background")
		require.Zero(t, e.now())
		e.c.Restore()
	})
}

// Unlock ends with its context even while it asks for the reason of a loss.
func TestLock_Unlock_boundedWhileAskingWhy(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		l := e.lock(t, "a")
		require.True(t, e.srv.Delete(l.Key()))
		e.c.Inject(fakeetcd.TimeToLive, fakeetcd.Fault{Lose: fakeetcd.Request})
		requireLost(t, l.Unlock(timeout(t, 100*time.Millisecond)), lease.ReasonKeyDeleted)
		require.Equal(t, 100*time.Millisecond, e.now())
	})
}

// Both calls may use the lock's own context, which has ended before the second: that waits as the first does.
func TestLock_Unlock_againOnItsOwnContext(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		l := e.lock(t, "a")
		e.c.Cut()
		require.ErrorContains(t, l.Unlock(l.Context()), "in the background")
		time.AfterFunc(time.Second, e.c.Restore)
		require.NoError(t, l.Unlock(l.Context()))
		require.Empty(t, e.keys(""))
		require.ErrorIs(t, l.Unlock(l.Context()), lease.ErrUnlocked)
	})
}

// A second Unlock leaves the key alone if another hold uses it by then.
func TestLock_Unlock_againDeletesNobodyElsesKey(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		l := e.lock(t, "a")
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer})
		require.ErrorIs(t, l.Unlock(timeout(t, time.Second)), context.DeadlineExceeded)
		synctest.Wait()
		next := e.lock(t, "a")
		require.Equal(t, l.Key(), next.Key())
		require.NoError(t, l.Unlock(t.Context()))
		require.Equal(t, []string{next.Key()}, e.keys(""))
		e.at(time.Minute)
		requireLive(t, next)
	})
}

// Without a bound by the caller, Unlock ends with the lease. Once that is lost there is no confirmation to wait for,
// since its keys go with it: every Unlock returns the loss.
func TestLock_Unlock_againAfterTheLeaseIsLost(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		l, other := e.lock(t, "a"), e.lock(t, "b")
		e.c.Cut()
		first := begin(e, func() (*lease.Lock, error) { return other, other.Unlock(t.Context()) })
		require.ErrorIs(t, l.Unlock(timeout(t, time.Second)), context.DeadlineExceeded)
		require.ErrorIs(t, l.Unlock(timeout(t, time.Second)), context.DeadlineExceeded)
		for range 2 {
			requireLost(t, l.Unlock(t.Context()), lease.ReasonDeadlinePassed)
			require.Equal(t, usable, e.now())
		}
		require.ErrorIs(t, context.Cause(l.Context()), lease.ErrUnlocked)
		got := receive(t, first)
		requireLost(t, got.err, lease.ReasonDeadlinePassed)
		require.Equal(t, usable, got.at)
		require.ErrorIs(t, context.Cause(other.Context()), lease.ErrUnlocked, "the first end counts")
	})
}
