package lease_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

func TestSession_Lock_givesAHandle(t *testing.T) {
	bubbleWith(t, lease.Options{Prefix: "jobs/", Owner: "me"}, func(t *testing.T, e *env) {
		ctx, cancel := context.WithCancel(t.Context())
		l, err := e.s.Lock(ctx, "a/b")
		require.NoError(t, err)
		require.Equal(t, "a/b", l.Name())
		kv := e.srv.Keys("")[0]
		require.Equal(t, string(kv.Key), l.Key())
		require.True(t, strings.HasPrefix(l.Key(), fmt.Sprintf("jobs/a/b/%x-", int64(e.s.Status().LeaseID))))
		require.Equal(t, "me", string(kv.Value))
		require.Equal(t, int64(e.s.Status().LeaseID), kv.Lease, "no metadata without the lease")
		require.Equal(t, fence.Token(kv.CreateRevision), l.Token())
		inCtx, ok := fence.FromContext(l.Context())
		require.True(t, ok)
		require.Equal(t, l.Token(), inCtx)

		// The acquisition's context ends with the acquisition.
		cancel()
		e.at(time.Hour)
		requireLive(t, l)
		held, err := e.c.Txn(t.Context()).If(l.IsOwner()).Commit()
		require.NoError(t, err)
		require.True(t, held.Succeeded)
		require.NoError(t, l.Unlock(t.Context()))
		held, err = e.c.Txn(t.Context()).If(l.IsOwner()).Commit()
		require.NoError(t, err)
		require.False(t, held.Succeeded)
	})
}

// A key without a lease, which would never go away, blocks nobody, and is reported now and then.
func TestSession_Lock_passesOverStrayKeys(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.srv.Put("a/planted", "x")
		e.srv.Put(fmt.Sprintf("a/%x", int64(e.s.Status().LeaseID)), "without the lease")
		e.srv.Put("a/b/nested", "y")
		for range 3 {
			l := e.lock(t, "a")
			require.NoError(t, l.Unlock(t.Context()))
			l = granted(t, e.wait(t.Context(), "a")).lock
			var locked *lease.LockedError
			require.ErrorAs(t, second(e.s.TryLock(t.Context(), "a")), &locked)
			require.Equal(t, l.Key(), locked.Key)
			require.NoError(t, l.Unlock(t.Context()))
		}
		synctest.Wait()
		require.NotContains(t, e.log.String(), "a/planted", "a key may contain the ID of a lease")
		require.Equal(t, 1, strings.Count(e.log.String(), "below=a/ keys=2"))
		require.Equal(t, 1, strings.Count(e.log.String(), "no contender"))
		require.NotContains(t, e.log.String(), "nested")
		require.Len(t, e.keys("a/"), 3, "other people's keys stay")
	})
}

// Text that somebody else has written is clipped where it is kept and where it is shown.
func TestSession_TryLock_longKeyAndValue(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		granted, err := e.c.Grant(t.Context(), 60)
		require.NoError(t, err)
		long := strings.Repeat("x", 600_000)
		e.put(t, fmt.Sprintf("a/%x-%s", int64(granted.ID), long), long, granted.ID)
		_, err = e.s.TryLock(t.Context(), "a")
		var locked *lease.LockedError
		require.ErrorAs(t, err, &locked)
		require.Less(t, len(locked.Key), 5000)
		require.Less(t, len(locked.Owner), 5000)
		require.Less(t, len(err.Error()), 500)
	})
}

// A key is not reused while a request to enter with it may still arrive: the reaper looks for it.
func TestSession_Lock_doesNotUseALateKeyAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 10 { // whichever suffix is chosen first
			e := start(t, lease.Options{})
			e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable})
			late := e.lock(t, "a")
			require.NoError(t, late.Unlock(t.Context()))
			for range 3 {
				l := e.lock(t, "a")
				require.NotEqual(t, late.Key(), l.Key())
				requireLive(t, l)
				require.NoError(t, l.Unlock(t.Context()))
			}
			l := e.lock(t, "a")
			e.at(2 * third)
			requireLive(t, l)
		}
	})
}

// For every kind of lock, the context carries the token, and it and the hooks carry the names that the token belongs to.
// The names have the session's prefix, since a session without it can lock the same name.
func TestLock_Context_carriesTheName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string // the names that hooks get
		e := start(t, lease.Options{Prefix: "svc/", Era: 3, Hooks: &lease.Hooks{
			AcquireEnd: func(_ context.Context, _ lease.Acquisition, r lease.Acquired) { told = r.Locks },
		}})
		named := func(want string) func(context.Context, fence.Token) error {
			return func(ctx context.Context, token fence.Token) error {
				got, _ := fence.LockFromContext(ctx)
				require.Equal(t, want, got)
				carried, _ := fence.FromContext(fence.ForLock(ctx, want))
				require.Equal(t, token, carried)
				return nil
			}
		}
		ctx := t.Context()
		require.NoError(t, e.s.Do(ctx, "report", func(ctx context.Context, outer fence.Token) error {
			return e.s.Do(ctx, "accounts", func(ctx context.Context, token fence.Token) error {
				require.NoError(t, named("svc/report")(fence.ForLock(ctx, "svc/report"), outer))
				return named("svc/accounts")(ctx, token)
			})
		}))
		require.Equal(t, []string{"svc/accounts"}, told)
		err := e.s.Do(ctx, "around", func(ctx context.Context, _ fence.Token) error {
			return e.s.RDo(ctx, "a", func(ctx context.Context, token fence.ReadToken) error {
				name, _ := fence.LockFromContext(ctx)
				require.Equal(t, "svc/a", name)
				require.Equal(t, []string{name}, told)
				got, _ := fence.ReadFromContext(ctx)
				require.Equal(t, token, got)
				require.Equal(t, uint16(3), token.Era())
				_, ok := fence.FromContext(ctx)
				require.False(t, ok, "a reader has no other token, not even that of a lock around it")
				require.Len(t, e.keys("svc/a/"), 1)
				return errMine
			})
		})
		require.ErrorIs(t, err, errMine)
		require.Empty(t, e.keys(""))
		require.NoError(t, e.s.DoTree(ctx, "a/b", named("svc/a/~b")))
		require.Equal(t, []string{"svc/a/~b"}, told)
		require.NoError(t, e.s.DoPermit(ctx, "pool", 1, named("svc/pool/~slot/0")))
		require.Equal(t, []string{"svc/pool/~slot/0"}, told)
		require.NoError(t, e.s.DoAll(ctx, []string{"stock", "orders"}, func(ctx context.Context, token fence.Token) error {
			_, ok := fence.LockFromContext(ctx)
			require.False(t, ok)
			require.Equal(t, []string{"svc/stock", "svc/orders"}, told)
			return errors.Join(named("svc/orders")(fence.ForLock(ctx, "svc/orders"), token),
				named("svc/stock")(fence.ForLock(ctx, "svc/stock"), token))
		}))
	})
}

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
