package integration_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/lease"
)

var errWork = errors.New("the work failed")

// scope is a Do under way whose function does as the test tells it.
type scope struct {
	ctx     context.Context //nolint:containedctx // what the function got, for the test to look at
	token   fence.Token
	running chan struct{} // closed when the function runs
	finish  chan error    // what the function returns
	done    chan struct{} // closed when Do has returned
	err     error
}

func goDo(ctx context.Context, s *lease.Session, name string, opts lease.LockOptions) *scope {
	sc := &scope{running: make(chan struct{}), finish: make(chan error, 1), done: make(chan struct{})}
	go func() {
		defer close(sc.done)
		sc.err = s.DoWith(ctx, name, opts, func(ctx context.Context, token fence.Token) error {
			sc.ctx, sc.token = ctx, token
			close(sc.running)
			return <-sc.finish
		})
	}()
	return sc
}

// result waits until Do has returned.
func (sc *scope) result(t *testing.T) error {
	t.Helper()
	awaitClosed(t, sc.done, "Do did not return")
	return sc.err
}

// stillRunning checks that Do has not returned.
func (sc *scope) stillRunning(t *testing.T) {
	t.Helper()
	select {
	case <-sc.done:
		require.FailNow(t, "Do returned before its function", "%v", sc.err)
	default:
	}
}

// TestDo_holdsUntilReturned is P8: the lock is held for exactly as long as the function runs, whatever becomes of the
// caller's context meanwhile, and a function that ignores cancellation is waited for.
func TestDo_holdsUntilReturned(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	s := newSession(t, srv.Client(t), lease.Options{})
	rival := newSession(t, srv.Client(t), lease.Options{})

	type key struct{}
	ctx, cancel := context.WithCancelCause(context.WithValue(bounded(t), key{}, "value"))
	work := goDo(ctx, s, "n", lease.LockOptions{})
	awaitClosed(t, work.running, "the function was not called")
	require.NoError(t, work.ctx.Err())
	require.Equal(t, "value", work.ctx.Value(key{}))
	token, ok := fence.FromContext(work.ctx)
	require.True(t, ok)
	require.Equal(t, work.token, token)
	kvs := srv.KeyValues(t, "n/")
	require.Len(t, kvs, 1)
	require.Equal(t, kvs[0].CreateRevision, token.Revision())

	cancel(errGaveUp)
	awaitClosed(t, work.ctx.Done(), "the function was not told that its caller gave up")
	require.ErrorIs(t, context.Cause(work.ctx), errGaveUp)
	next := goLock(bounded(t), rival, "n")
	awaitQueue(t, srv, "n", 2)
	require.NoError(t, mustLock(t, s, "other").Unlock(bounded(t))) // by then a release would have come through
	work.stillRunning(t)
	next.waiting(t)
	require.Equal(t, kvs[0].Key, srv.KeyValues(t, "n/")[0].Key)

	work.finish <- errWork
	require.Equal(t, errWork.Error(), work.result(t).Error(), "the function's error and no other")
	require.ErrorIs(t, work.err, errWork)
	require.NoError(t, next.granted(t).Unlock(bounded(t)))
}

// TestDo_reportsLossAndError is P8: the lock is lost while the function runs.
func TestDo_reportsLossAndError(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rig := newLockRig(t, srv, lease.Options{})
	for name, fnErr := range map[string]error{"error": errWork, "success": nil} {
		work := goDo(bounded(t), rig.Session, name, lease.LockOptions{})
		awaitClosed(t, work.running, "the function was not called")
		srv.Revoke(t, rig.leaseID())
		awaitClosed(t, work.ctx.Done(), "the function was not told of the loss")
		lostFor(t, context.Cause(work.ctx), lease.LeaseGone)
		work.stillRunning(t)
		work.finish <- fnErr
		err := work.result(t)
		lostFor(t, err, lease.LeaseGone)
		require.Equal(t, fnErr != nil, errors.Is(err, errWork))
	}
}

// TestDo_panic checks that a panic lets the lock go and goes on.
func TestDo_panic(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	s := newSession(t, srv.Client(t), lease.Options{})
	require.PanicsWithError(t, errWork.Error(), func() {
		_ = s.Do(bounded(t), "n", func(context.Context, fence.Token) error { panic(errWork) })
	})
	require.Empty(t, srv.Keys(t, "n/"))
	requireFree(t, srv, s, "n")
	require.NoError(t, s.Close(bounded(t)), "the scope has ended")
}

// TestDo_maxHold is pain 43: after its longest hold the function is told to stop, waited for, and only then the lock
// is let go.
func TestDo_maxHold(t *testing.T) {
	t.Parallel()
	const maxHold = 100 * time.Millisecond
	srv := etcdtest.Start(t, etcdtest.Options{})
	s := newSession(t, srv.Client(t), lease.Options{})
	rival := newSession(t, srv.Client(t), lease.Options{})
	for name, fnErr := range map[string]error{"error": errWork, "success": nil} {
		begin := time.Now()
		work := goDo(bounded(t), s, name, lease.LockOptions{MaxHold: maxHold})
		awaitClosed(t, work.running, "the function was not called")
		next := goLock(bounded(t), rival, name)
		awaitQueue(t, srv, name, 2)
		awaitClosed(t, work.ctx.Done(), "the function was not told that its time is over")
		require.GreaterOrEqual(t, time.Since(begin), maxHold)
		require.ErrorIs(t, context.Cause(work.ctx), lease.ErrMaxHold)
		require.NotErrorIs(t, context.Cause(work.ctx), lease.ErrLost)

		// By the time that another lock has come and gone, a release would have.
		require.NoError(t, mustLock(t, s, "other").Unlock(bounded(t)))
		require.Equal(t, work.token.Revision(), srv.KeyValues(t, name+"/")[0].CreateRevision)
		work.stillRunning(t)
		next.waiting(t)

		work.finish <- fnErr
		err := work.result(t)
		require.ErrorIs(t, err, lease.ErrMaxHold)
		require.NotErrorIs(t, err, lease.ErrLost)
		require.Equal(t, fnErr != nil, errors.Is(err, errWork))
		require.NoError(t, next.granted(t).Unlock(bounded(t)))
		awaitQueue(t, srv, name, 0)
	}
}

// TestDo_maxHoldNotReached checks that the bound is none for work that ends in time.
func TestDo_maxHoldNotReached(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	s := newSession(t, srv.Client(t), lease.Options{})
	work := goDo(bounded(t), s, "n", lease.LockOptions{MaxHold: time.Hour})
	work.finish <- nil
	require.NoError(t, work.result(t))
	require.NotErrorIs(t, context.Cause(work.ctx), lease.ErrMaxHold)
}

// TestDo_causeAfterReturn is P5 for what a function leaves running: its context has ended with the lock, and says so.
func TestDo_causeAfterReturn(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	s := newSession(t, srv.Client(t), lease.Options{})
	work := goDo(bounded(t), s, "n", lease.LockOptions{})
	work.finish <- nil
	require.NoError(t, work.result(t))
	require.ErrorIs(t, context.Cause(work.ctx), lease.ErrUnlocked)
}

// TestLock_maxHold is pain 43 for a handle: the key stays until Unlock, which returns nil.
func TestLock_maxHold(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	s := newSession(t, srv.Client(t), lease.Options{})
	l, err := s.LockWith(bounded(t), "n", lease.LockOptions{MaxHold: time.Millisecond})
	require.NoError(t, err)
	require.ErrorIs(t, awaitDone(t, l), lease.ErrMaxHold)
	require.Equal(t, []string{l.Key()}, srv.Keys(t, "n/"))
	require.NoError(t, l.Unlock(bounded(t)))
	require.Empty(t, srv.Keys(t, "n/"))
	require.ErrorIs(t, context.Cause(l.Context()), lease.ErrMaxHold)
}

// TestDo_lossAfterMaxHold checks that the second misfortune is told too: the lock is lost while the function that
// has had its time still runs.
func TestDo_lossAfterMaxHold(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rig := newLockRig(t, srv, lease.Options{})
	work := goDo(bounded(t), rig.Session, "n", lease.LockOptions{MaxHold: time.Millisecond})
	awaitClosed(t, work.running, "the function was not called")
	awaitClosed(t, work.ctx.Done(), "the function was not told that its time is over")
	srv.Revoke(t, rig.leaseID())
	work.finish <- nil
	err := work.result(t)
	require.ErrorIs(t, err, lease.ErrMaxHold)
	lostFor(t, err, lease.LeaseGone)
}
