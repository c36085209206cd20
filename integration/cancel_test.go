package integration_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/lease"
)

// TestLock_cancelledAtAnyMoment is pain 8: whenever the caller's context ends around the grant, the error is nil if and
// only if the lock is held, and after an error nothing is left in the queue.
func TestLock_cancelledAtAnyMoment(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rival := newSession(t, srv.Client(t), lease.Options{})
	s := newSession(t, srv.Client(t), lease.Options{})
	ended := func(t *testing.T, l *lease.Lock, err error) (held bool) {
		t.Helper()
		if err != nil {
			require.ErrorIs(t, err, errGaveUp)
			require.Nil(t, l)
		} else {
			requireHeld(t, srv, l)
			require.NoError(t, l.Unlock(bounded(t)))
		}
		return err == nil
	}
	// The moments are spread over twice what the grant takes here.
	begin := time.Now()
	require.NoError(t, mustLock(t, s, "n").Unlock(bounded(t)))
	span := time.Since(begin)

	var granted int
	for range 150 {
		ctx, cancel := context.WithTimeoutCause(bounded(t), rand.N(span), errGaveUp)
		l, err := s.Lock(ctx, "n")
		cancel()
		if ended(t, l, err) {
			granted++
		}
		awaitQueue(t, srv, "n", 0)
	}
	t.Logf("free lock: granted in %d of 150", granted)

	granted = 0
	for range 100 {
		holder := mustLock(t, rival, "n")
		ctx, cancel := context.WithCancelCause(bounded(t))
		waiter := goLock(ctx, s, "n")
		awaitQueue(t, srv, "n", 2)
		unlocked := make(chan error, 1)
		go func() { unlocked <- holder.Unlock(bounded(t)) }()
		time.Sleep(rand.N(span)) // not to wait for anything: any moment will do
		cancel(errGaveUp)
		l, err := waiter.result(t)
		if ended(t, l, err) {
			granted++
		}
		require.NoError(t, <-unlocked)
		awaitQueue(t, srv, "n", 0)
	}
	t.Logf("hand-over: granted in %d of 100", granted)
	requireFree(t, srv, rival, "n")
}

// TestLock_contextEndsBeforeAnswer is pain 8 at the one moment that matters: the answer that grants the lock is on its
// way up when the caller's context ends.
func TestLock_contextEndsBeforeAnswer(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rival := newSession(t, srv.Client(t), lease.Options{})
	forms := map[string]func(*lease.Session, context.Context, string) (*lease.Lock, error){
		"Lock":    (*lease.Session).Lock,
		"TryLock": (*lease.Session).TryLock,
	}
	for form, lock := range forms {
		t.Run(form, func(t *testing.T) {
			rig := newLockRig(t, srv, lease.Options{})
			ctx, cancel := context.WithCancelCause(bounded(t))
			rig.in.OnAnswer(func(_ string, req, _ any) {
				if isEnter(req) {
					cancel(errGaveUp)
				}
			})
			l, err := lock(rig.Session, ctx, "n")
			require.ErrorIs(t, err, errGaveUp)
			require.Nil(t, l)
			requireFree(t, srv, rival, "n")
		})
	}
	t.Run("waiter", func(t *testing.T) {
		holder := mustLock(t, rival, "n")
		rig := newLockRig(t, srv, lease.Options{})
		ctx, cancel := context.WithCancelCause(bounded(t))
		waiter := goLock(ctx, rig.Session, "n")
		rig.awaitWatches(t)
		rig.in.OnAnswer(func(_ string, _, reply any) { // the event that grants it the lock; nothing is asked after that
			if resp, ok := reply.(*etcdserverpb.WatchResponse); ok && len(resp.Events) > 0 {
				cancel(errGaveUp)
			}
		})
		require.NoError(t, holder.Unlock(bounded(t)))
		l, err := waiter.result(t)
		require.ErrorIs(t, err, errGaveUp)
		require.Nil(t, l)
		requireFree(t, srv, rival, "n")
	})
}

// TestLock_endedContextSendsNothing is a call that was over before it began.
func TestLock_endedContextSendsNothing(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rig := newLockRig(t, srv, lease.Options{})
	sent := countRequests(rig.in)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errGaveUp)

	_, err := rig.Lock(ctx, "n")
	require.ErrorIs(t, err, errGaveUp)
	_, err = rig.TryLock(ctx, "n")
	require.ErrorIs(t, err, errGaveUp)
	require.ErrorIs(t, rig.Do(ctx, "n", neverCalled(t)), errGaveUp)
	require.Zero(t, sent.Load())
}
