package lease_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

type key struct{}

func TestSession_Do_runsUnderTheLock(t *testing.T) {
	bubbleWith(t, lease.Options{Owner: "session"}, func(t *testing.T, e *env) {
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

// However the hold ends under it, the function's context ends with the reason, and Do releases the lock only after the
// function has returned. The error is that of the function and, if it was not the caller who gave up, the reason.
func TestSession_Do_endsEarly(t *testing.T) {
	mine := errors.New("mine") // another one than that of the function
	for name, tc := range map[string]struct {
		end   func(e *env, cancel context.CancelCauseFunc) // after a second
		opts  []lease.LockOption
		cause error
		lost  bool
		want  string // the error of Do, after that of the function
	}{
		"cancelled by the caller": {
			end:   func(_ *env, cancel context.CancelCauseFunc) { cancel(mine) },
			cause: mine,
		},
		"lost": {
			end:   func(e *env, _ context.CancelCauseFunc) { e.srv.Delete(e.keys("a")[0]) },
			cause: lease.ErrLost, lost: true,
			want: "\n" + `lease: unlock "a": lease: lost: the key was deleted by somebody else`,
		},
		"asked": {
			end: func(e *env, _ context.CancelCauseFunc) {
				_ = lease.Release(e.c.Ctx(), e.c.Client, "a", lease.ReleaseOptions{})
			},
			cause: lease.ErrAskedToRelease,
			want:  "\n" + `lease: lock "a": lease: asked to release`,
		},
		"longest hold": {
			opts:  []lease.LockOption{lease.WithMaxHold(time.Second)},
			cause: lease.ErrMaxHold,
			want:  "\n" + `lease: lock "a": lease: longest hold reached`,
		},
		"longest hold, then lost": {
			end: func(e *env, _ context.CancelCauseFunc) {
				time.Sleep(time.Second)
				_ = e.srv.Revoke(e.s.Status().LeaseID)
			},
			opts:  []lease.LockOption{lease.WithMaxHold(time.Second)},
			cause: lease.ErrMaxHold, lost: true,
			want: "\n" + `lease: lock "a": lease: longest hold reached` +
				"\n" + `lease: unlock "a": lease: lost: the lease has expired or was revoked; the key will be deleted in the background`,
		},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if tc.end != nil {
				time.AfterFunc(time.Second, func() { tc.end(e, cancel) })
			}
			err := e.s.Do(ctx, "a", func(ctx context.Context, _ fence.Token) error {
				_, bounded := ctx.Deadline()
				require.False(t, bounded)
				receive(t, ctx.Done())
				require.Equal(t, time.Second, e.now())
				require.ErrorIs(t, context.Cause(ctx), tc.cause)
				require.ErrorIs(t, ctx.Err(), context.Canceled)
				time.Sleep(time.Minute)
				require.Equal(t, !tc.lost, len(e.keys("a")) == 1, "not under running work")
				return errMine
			}, tc.opts...)
			require.EqualError(t, err, errMine.Error()+tc.want)
			require.ErrorIs(t, err, errMine)
			require.Equal(t, tc.want != "", errors.Is(err, tc.cause))
			require.Equal(t, tc.lost, errors.Is(err, lease.ErrLost))
			require.Equal(t, time.Minute+time.Second, e.now())
			require.Empty(t, e.keys(""), "unlocked though ctx may have ended")
		})
	}
}

// A failure to unlock is bounded and reported.
func TestSession_Do_cannotUnlock(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		err := e.s.Do(t.Context(), "a", func(context.Context, fence.Token) error {
			e.c.Cut()
			return errMine
		})
		require.ErrorIs(t, err, errMine)
		require.ErrorContains(t, err, `lease: unlock "a":`)
		require.NotErrorIs(t, err, lease.ErrLost)
		require.Equal(t, 8*time.Second, e.now())
		e.c.Restore()
		e.at(8*time.Second + third)
		require.Empty(t, e.keys(""), "deleted in the background")
	})
}

func TestSession_Do_panics(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		require.PanicsWithValue(t, "mine", func() {
			_ = e.s.Do(t.Context(), "a", func(context.Context, fence.Token) error { panic("mine") })
		})
		require.Empty(t, e.keys(""))
		require.NoError(t, e.s.Close(t.Context()))
		require.Zero(t, e.now(), "Close does not wait for it")
	})
}

func TestLock_longestHold(t *testing.T) {
	bubbleWith(t, lease.Options{Owner: "session"}, func(t *testing.T, e *env) {
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, After: time.Second})
		l := e.lock(t, "a", lease.WithMaxHold(time.Minute))
		end := e.ended(l)
		require.Equal(t, time.Second+time.Minute, receive(t, end), "from the grant")
		require.Equal(t, lease.ErrMaxHold, context.Cause(l.Context()))
		e.at(time.Hour)
		require.Len(t, e.keys("a"), 1, "still held")
		locked, ok := errors.AsType[*lease.LockedError](second(e.s.TryLock(t.Context(), "a")))
		require.True(t, ok)
		require.Equal(t, "session", locked.Owner, "an option changes what it names")
		require.NoError(t, l.Unlock(l.Context()), "on its own context, which has ended already")
		require.Empty(t, e.keys(""))

		l = e.lock(t, "a", lease.WithMaxHold(time.Minute))
		require.NoError(t, l.Unlock(t.Context()))
		e.at(2 * time.Hour)
		require.Equal(t, lease.ErrUnlocked, context.Cause(l.Context()))
	})
}

// A finished call leaves nothing registered on the caller's context, which may live as long as the process, nor on the
// session's, and no guard of a key.
func TestSession_callsLeaveNothingRegistered(t *testing.T) {
	for name, call := range map[string]func(t *testing.T, ctx context.Context, e, other *env){
		"Lock that waits": func(t *testing.T, ctx context.Context, e, other *env) {
			t.Helper()
			held := other.lock(t, "a")
			next, last := e.wait(ctx, "a"), e.wait(ctx, "a")
			time.Sleep(time.Second)
			require.NoError(t, held.Unlock(ctx))
			require.NoError(t, receive(t, next).lock.Unlock(ctx))
			require.NoError(t, receive(t, last).lock.Unlock(ctx))
		},
		"Lock that is given up": func(t *testing.T, ctx context.Context, e, other *env) {
			t.Helper()
			held := other.lock(t, "a")
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			require.ErrorIs(t, second(e.s.Lock(short, "a")), context.DeadlineExceeded)
			short, cancel = context.WithTimeout(ctx, time.Second)
			defer cancel()
			require.ErrorIs(t, second(e.s.LockAll(short, "a", "b")), context.DeadlineExceeded)
			require.NoError(t, held.Unlock(ctx))
			time.Sleep(time.Second) // until its key is deleted
		},
		"Do": func(t *testing.T, ctx context.Context, e, _ *env) {
			t.Helper()
			require.NoError(t, e.s.Do(ctx, "a", nothing))
		},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			other := e.join(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			registered := func() int {
				e.at(e.now() + time.Second)
				return e.s.Registered(ctx)
			}
			call(t, ctx, e, other)
			before := registered()
			for range 10 {
				call(t, ctx, e, other)
			}
			require.Equal(t, before, registered())
			require.Empty(t, e.c.Calls(fakeetcd.TimeToLive), "nobody asks why a key is gone that the session has deleted")
		})
	}
}
