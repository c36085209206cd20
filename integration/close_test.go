package integration_test

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/lease"
)

// goClose begins to close a session.
func goClose(ctx context.Context, s *lease.Session) <-chan error {
	done := make(chan error, 1)
	go func() { done <- s.Close(ctx) }()
	return done
}

func closed(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		require.FailNow(t, "Close did not return")
		return nil
	}
}

// libraryGoroutines lists the goroutines that run code of the library.
func libraryGoroutines() []string {
	buf := make([]byte, 16<<20)
	var found []string
	for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(g, "leasefence/leasefence/lease.") || strings.Contains(g, "leasefence/internal/queue.") {
			found = append(found, g)
		}
	}
	return found
}

// TestSession_everyCallIsBounded is pain 15: with a server that swallows everything, every call returns when its
// context ends, and Close leaves no goroutine.
//
// It is not parallel, since it looks at all goroutines.
func TestSession_everyCallIsBounded(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)
	srv := etcdtest.Start(t, etcdtest.Options{})
	proxy := faults.NewProxy(t, srv.Endpoint())
	client := srv.Client(t, etcdtest.Via(proxy.Addr()))
	rival := newSession(t, srv.Client(t), lease.Options{})
	mustLock(t, rival, "taken")
	s := newSession(t, client, lease.Options{})
	quick, long := mustLock(t, s, "quick"), mustLock(t, s, "long")
	waiter := goLock(bounded(t), s, "taken")
	awaitQueue(t, srv, "taken", 2)
	proxy.BlackHole()

	bound := func() context.Context {
		ctx, cancel := context.WithTimeoutCause(bounded(t), 50*time.Millisecond, errGaveUp)
		t.Cleanup(cancel)
		return ctx
	}
	_, err := lease.NewSession(bound(), client, lease.Options{})
	require.ErrorIs(t, err, errGaveUp)
	_, err = lease.Adopt(bound(), client, s.Status().LeaseID, lease.Options{})
	require.ErrorIs(t, err, errGaveUp)
	_, err = s.Lock(bound(), "n")
	require.ErrorIs(t, err, errGaveUp)
	_, err = s.TryLock(bound(), "n")
	require.ErrorIs(t, err, errGaveUp)
	require.ErrorIs(t, s.Do(bound(), "n", neverCalled(t)), errGaveUp)
	require.ErrorIs(t, quick.Unlock(bound()), errGaveUp)

	err = closed(t, goClose(bound(), s))
	require.ErrorIs(t, err, errGaveUp)
	require.ErrorContains(t, err, "expires by itself")
	_, err = waiter.result(t)
	require.ErrorIs(t, err, lease.ErrClosed)
	lostFor(t, context.Cause(long.Context()), lease.SessionClosed)
	require.NoError(t, rival.Close(bounded(t)))
	require.Eventually(t, func() bool { return len(libraryGoroutines()) == 0 }, patience, time.Millisecond,
		"left after Close: %s", libraryGoroutines())
}

// TestClose_goroutinesEnd checks that Close alone, before the client and the server are closed, ends everything: with
// handles held for long and shortly, a waiter, orphans that might still arrive, and a lost lease behind it.
//
// It is not parallel, since it looks at all goroutines.
func TestClose_goroutinesEnd(t *testing.T) {
	etcdtest.VerifyNoLeaks(t)
	srv := etcdtest.Start(t, etcdtest.Options{})
	rig := newLockRig(t, srv, lease.Options{})
	rival := newSession(t, srv.Client(t), lease.Options{})
	mustLock(t, rival, "taken")

	lost := mustLock(t, rig.Session, "watched")
	require.NoError(t, rig.in.AwaitAnswered(bounded(t), faults.Watch, 1))
	srv.Revoke(t, rig.leaseID())
	lostFor(t, awaitDone(t, lost), lease.LeaseGone)

	watches := rig.in.Answered(faults.Watch)
	mustLock(t, rig.Session, "watched")
	require.NoError(t, rig.in.AwaitAnswered(bounded(t), faults.Watch, watches+1))
	mustLock(t, rig.Session, "fresh")
	waiter := goLock(bounded(t), rig.Session, "taken")
	awaitQueue(t, srv, "taken", 2)
	ctx, cancel := context.WithCancelCause(bounded(t))
	late := make(chan struct{})
	defer close(late)
	rig.in.Inject(t, faults.Rule{
		Fault: faults.LateRequest, Method: faults.Txn, Times: 1, Silent: true, Until: late,
		Match: func(any) bool {
			cancel(errGaveUp)
			return true
		},
	})
	_, err := rig.Lock(ctx, "stuck")
	require.ErrorIs(t, err, errGaveUp)

	require.NoError(t, rig.Close(bounded(t)))
	require.NoError(t, rival.Close(bounded(t)))
	_, err = waiter.result(t)
	require.ErrorIs(t, err, lease.ErrClosed)
	require.Eventually(t, func() bool { return len(libraryGoroutines()) == 0 }, patience, time.Millisecond)
	require.Empty(t, srv.Keys(t, ""))
	require.Empty(t, srv.Leases(t))
}

// TestClose_again checks that a second Close, and one at the same time, waits for the first and says the same.
func TestClose_again(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rig := newLockRig(t, srv, lease.Options{})
	mustLock(t, rig.Session, "n")
	hold := make(chan struct{})
	revoking := rig.in.Inject(t, faults.Rule{Fault: faults.DelayRequest, Method: faults.LeaseRevoke, Until: hold, Times: 1})
	first := goClose(bounded(t), rig.Session)
	awaitClosed(t, revoking.Hit(), "Close did not revoke the lease")
	second := goClose(bounded(t), rig.Session)

	ctx, cancel := context.WithTimeoutCause(bounded(t), 20*time.Millisecond, errGaveUp)
	defer cancel()
	require.ErrorIs(t, rig.Close(ctx), errGaveUp, "the first is still under way")

	close(hold)
	require.NoError(t, closed(t, first))
	require.NoError(t, closed(t, second))
	require.NoError(t, rig.Close(ctx), "it has been closed, whatever the context")
	require.Empty(t, srv.Leases(t))

	// An error is the same for everyone as well.
	rig = newLockRig(t, srv, lease.Options{})
	err := rig.Close(ctx)
	require.Error(t, err)
	require.Equal(t, err, rig.Close(bounded(t)))
}

// TestClose_refusesAfterwards checks that a closed session hands out nothing, and sends nothing.
func TestClose_refusesAfterwards(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rig := newLockRig(t, srv, lease.Options{})
	require.NoError(t, rig.Close(bounded(t)))
	sent := countRequests(rig.in)
	_, err := rig.Lock(bounded(t), "n")
	require.ErrorIs(t, err, lease.ErrClosed)
	_, err = rig.TryLock(bounded(t), "n")
	require.ErrorIs(t, err, lease.ErrClosed)
	require.ErrorIs(t, rig.Do(bounded(t), "n", neverCalled(t)), lease.ErrClosed)
	require.Equal(t, lease.Lost, rig.Status().State)
	require.Zero(t, sent.Load())
}

// TestClose_endsWaiters checks that those who wait are told, wherever they stand.
func TestClose_endsWaiters(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rig := newLockRig(t, srv, lease.Options{})
	rival := newSession(t, srv.Client(t), lease.Options{})
	holder := mustLock(t, rival, "n")
	mustLock(t, rival, "m")
	mustLock(t, rig.Session, "own")
	var waiters []*attempt
	for range 5 { // in etcd's queue and in the session's, behind others and behind itself
		waiters = append(waiters, goLock(bounded(t), rig.Session, "n").standing(t), goLock(bounded(t), rig.Session, "own").standing(t))
	}
	awaitQueue(t, srv, "n", 2)
	// One has not even got its answer.
	stuck := rig.in.Inject(t, faults.Rule{Fault: faults.LoseAnswer, Method: faults.Txn, Match: isEnter, Silent: true})
	waiters = append(waiters, goLock(bounded(t), rig.Session, "m"))
	awaitClosed(t, stuck.Hit(), "nobody entered")

	require.NoError(t, rig.Close(bounded(t)))
	for _, w := range waiters {
		l, err := w.result(t)
		require.ErrorIs(t, err, lease.ErrClosed)
		require.Nil(t, l)
	}
	require.Equal(t, []string{holder.Key()}, srv.Keys(t, "n/"))
	require.Len(t, srv.Keys(t, "m/"), 1)
	requireHeld(t, srv, holder)
}

// TestClose_waitsForWork is P6 and P8: Close tells the function to stop, waits for it, and revokes the lease then.
func TestClose_waitsForWork(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rig := newLockRig(t, srv, lease.Options{})
	work := goDo(bounded(t), rig.Session, "n", lease.LockOptions{})
	awaitClosed(t, work.running, "the function was not called")
	key := awaitQueue(t, srv, "n", 1)
	done := goClose(bounded(t), rig.Session)
	awaitClosed(t, work.ctx.Done(), "the function was not told")
	require.ErrorIs(t, context.Cause(work.ctx), lease.ErrClosed)
	lostFor(t, context.Cause(work.ctx), lease.SessionClosed)

	_, err := rig.Lock(bounded(t), "m")
	require.ErrorIs(t, err, lease.ErrClosed, "nothing begins any more")
	require.Equal(t, key, srv.Keys(t, "n/"), "the lock is not let go under the function")
	require.Contains(t, srv.Leases(t), rig.leaseID())
	require.Zero(t, rig.in.Sent(faults.LeaseRevoke))
	require.Empty(t, done)

	work.finish <- errWork
	require.NoError(t, closed(t, done))
	err = work.result(t)
	require.ErrorIs(t, err, errWork)
	require.ErrorIs(t, err, lease.ErrClosed)
	require.Empty(t, srv.Keys(t, ""))
	require.Empty(t, srv.Leases(t))
}

// TestClose_givesUpOnWork checks that the lease is not revoked under a function that does not stop in time: it is no
// longer renewed and goes by itself.
func TestClose_givesUpOnWork(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rig := newLockRig(t, srv, lease.Options{TTL: minTTL})
	work := goDo(bounded(t), rig.Session, "n", lease.LockOptions{})
	awaitClosed(t, work.running, "the function was not called")
	key := awaitQueue(t, srv, "n", 1)

	ctx, cancel := context.WithTimeoutCause(bounded(t), 20*time.Millisecond, errGaveUp)
	defer cancel()
	err := closed(t, goClose(ctx, rig.Session))
	require.ErrorIs(t, err, errGaveUp)
	require.ErrorContains(t, err, "still running")
	work.stillRunning(t)
	require.Equal(t, key, srv.Keys(t, "n/"))
	require.Contains(t, srv.Leases(t), rig.leaseID())

	renewals := rig.in.Sent(faults.LeaseKeepAlive)
	awaitQueue(t, srv, "n", 0)
	require.Equal(t, renewals, rig.in.Sent(faults.LeaseKeepAlive))
	require.Zero(t, rig.in.Sent(faults.LeaseRevoke))
	work.finish <- nil
	require.ErrorIs(t, work.result(t), lease.ErrClosed)
}

// TestClose_fromWithin checks that a function under a lock can begin to close its session, though not wait for it.
func TestClose_fromWithin(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	s := newSession(t, srv.Client(t), lease.Options{})
	err := s.Do(bounded(t), "n", func(ctx context.Context, _ fence.Token) error {
		bound, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), 20*time.Millisecond, errGaveUp)
		defer cancel()
		return s.Close(bound)
	})
	require.ErrorIs(t, err, errGaveUp)
	require.ErrorIs(t, err, lease.ErrClosed)
}
