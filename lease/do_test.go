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

type key struct{}

func TestSession_Do_runsUnderTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{Owner: "session"})
		ctx := context.WithValue(fence.NewContext(timeout(t, time.Minute), 99), key{}, "mine")
		var kept context.Context
		err := e.s.Do(ctx, "a", func(ctx context.Context, token fence.Token) error {
			kept = ctx //nolint:fatcontext // to see what becomes of it
			kv := e.srv.Keys("a")[0]
			require.Equal(t, fence.Token(kv.CreateRevision), token)
			require.Equal(t, "do", string(kv.Value))
			inCtx, ok := fence.FromContext(ctx)
			require.True(t, ok)
			require.Equal(t, token, inCtx, "not the token of the caller's context")
			require.Equal(t, "mine", ctx.Value(key{}))
			require.Nil(t, ctx.Value("other"))
			deadline, ok := ctx.Deadline()
			require.True(t, ok)
			require.Equal(t, time.Now().Add(time.Minute), deadline, "the caller's deadline")
			require.NoError(t, ctx.Err())
			return errMine
		}, lease.WithOwner("do"))
		require.ErrorIs(t, err, errMine)
		require.NotErrorIs(t, err, lease.ErrLost)
		require.Empty(t, e.keys(""))
		require.Error(t, kept.Err(), "it ends with the function")
	})
}

// The function's context ends with the caller's, and with its cause; the lock stays held until the function has
// returned.
func TestSession_Do_cancelledByTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{})
		mine := errors.New("mine")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(mine) })
		err := e.s.Do(ctx, "a", func(ctx context.Context, _ fence.Token) error {
			receive(t, ctx.Done())
			require.Equal(t, mine, context.Cause(ctx))
			require.ErrorIs(t, ctx.Err(), context.Canceled)
			time.Sleep(time.Minute)
			require.Len(t, e.keys("a"), 1)
			return nil
		})
		require.NoError(t, err, "the function has done its work, and the lock was held throughout")
		require.Equal(t, time.Minute+time.Second, e.now())
		require.Empty(t, e.keys(""), "unlocked though ctx has ended")
	})
}

// On a loss, Do cancels the context, waits for the function, and returns both errors.
func TestSession_Do_lost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{})
		mine := errors.New("mine")
		time.AfterFunc(time.Second, func() { e.srv.Delete(e.keys("a")[0]) })
		err := e.s.Do(t.Context(), "a", func(ctx context.Context, _ fence.Token) error {
			<-ctx.Done()
			requireLost(t, context.Cause(ctx), lease.ReasonKeyDeleted)
			time.Sleep(time.Minute)
			return mine
		})
		require.ErrorIs(t, err, mine)
		requireLost(t, err, lease.ReasonKeyDeleted)
		require.Equal(t, time.Minute+time.Second, e.now())
	})
}

// A failure to unlock is bounded and reported.
func TestSession_Do_cannotUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{})
		mine := errors.New("mine")
		err := e.s.Do(t.Context(), "a", func(context.Context, fence.Token) error {
			e.c.Cut()
			return mine
		})
		require.ErrorIs(t, err, mine)
		require.ErrorContains(t, err, `lease: unlock "a":`)
		require.NotErrorIs(t, err, lease.ErrLost)
		require.Equal(t, 8*time.Second, e.now())
		e.c.Restore()
		e.at(8*time.Second + third)
		require.Empty(t, e.keys(""), "deleted in the background")
	})
}

// TryDo runs the function under a lock that is free, and releases it. If the lock is held, TryDo returns the holder at once.
func TestSession_TryDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{Owner: "session"})
		never := func(context.Context, fence.Token) error {
			require.Fail(t, "called without the lock")
			return nil
		}
		err := e.s.TryDo(t.Context(), "a", func(ctx context.Context, token fence.Token) error {
			inCtx, _ := fence.FromContext(ctx)
			require.Equal(t, token, inCtx)
			require.Equal(t, "do", string(e.srv.Keys("a")[0].Value))
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			err := e.s.TryDo(ctx, "a", never)
			locked, ok := errors.AsType[*lease.LockedError](err)
			require.True(t, ok, err)
			require.Equal(t, &lease.LockedError{Name: "a", Owner: "do", Key: e.keys("a")[0], Token: token}, locked)
			return errMine
		}, lease.WithOwner("do"))
		require.ErrorIs(t, err, errMine)
		require.NotErrorIs(t, err, lease.ErrLocked)
		require.Empty(t, e.keys(""))

		held := e.lock(t, "a")
		require.ErrorIs(t, e.s.TryDo(timeout(t, time.Second), "a", never), lease.ErrLocked)
		require.NoError(t, held.Unlock(t.Context()))
		require.ErrorContains(t, e.s.TryDo(t.Context(), "a", nil), "fn is nil")
		require.Zero(t, e.now())
	})
}

func TestSession_Do_panics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{})
		require.PanicsWithValue(t, "mine", func() {
			_ = e.s.Do(t.Context(), "a", func(context.Context, fence.Token) error { panic("mine") })
		})
		require.Empty(t, e.keys(""))
		require.NoError(t, e.s.Close(t.Context()))
		require.Zero(t, e.now(), "Close does not wait for it")
	})
}

// At the longest hold, Do cancels the context, waits for the function, and then releases.
func TestSession_Do_longestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{})
		short := lease.WithMaxHold(2 * time.Second)
		mine := errors.New("mine")
		err := e.s.Do(t.Context(), "a", func(ctx context.Context, _ fence.Token) error {
			<-ctx.Done()
			require.Equal(t, 2*time.Second, e.now())
			require.ErrorIs(t, context.Cause(ctx), lease.ErrMaxHold)
			time.Sleep(time.Minute)
			require.Len(t, e.keys("a"), 1, "not under running work")
			return mine
		}, short)
		require.ErrorIs(t, err, mine)
		require.ErrorIs(t, err, lease.ErrMaxHold)
		require.ErrorContains(t, err, `lock "a": lease: longest hold`)
		require.NotErrorIs(t, err, lease.ErrLost)
		require.Empty(t, e.keys(""))

		require.NoError(t, e.s.Do(t.Context(), "a", nothing, short), "the bound does not affect shorter work")
	})
}

func TestLock_longestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{})
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, After: time.Second})
		l, err := e.s.Lock(t.Context(), "a", lease.WithMaxHold(time.Minute))
		require.NoError(t, err)
		end := e.ended(l)
		require.Equal(t, time.Second+time.Minute, receive(t, end), "from the grant")
		require.Equal(t, lease.ErrMaxHold, context.Cause(l.Context()))
		e.at(time.Hour)
		require.Len(t, e.keys("a"), 1, "still held")
		_, err = e.s.TryLock(t.Context(), "a")
		require.ErrorIs(t, err, lease.ErrLocked)
		require.NoError(t, l.Unlock(t.Context()))
		require.Empty(t, e.keys(""))

		l, err = e.s.TryLock(t.Context(), "a", lease.WithMaxHold(time.Minute))
		require.NoError(t, err)
		require.NoError(t, l.Unlock(t.Context()))
		e.at(2 * time.Hour)
		require.Equal(t, lease.ErrUnlocked, context.Cause(l.Context()))
	})
}

// If the lock is lost after its longest hold, while the function still runs, Do returns both errors.
func TestSession_Do_lostAfterTheLongestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{})
		err := e.s.Do(t.Context(), "a", func(ctx context.Context, _ fence.Token) error {
			<-ctx.Done()
			require.NoError(t, e.srv.Revoke(e.s.Status().LeaseID))
			synctest.Wait()
			return nil
		}, lease.WithMaxHold(2*time.Second))
		require.ErrorIs(t, err, lease.ErrMaxHold)
		requireLost(t, err, lease.ReasonLeaseGone)
	})
}
