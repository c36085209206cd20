package integration_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/lease"
)

// TestUnlock_retryLeavesNewerLock is pain 3: the answer to Unlock is lost, and before the request is repeated another
// goroutine of the same session gets the lock. The repetition must not take it away, nor must a copy of the first
// request that arrives late.
func TestUnlock_retryLeavesNewerLock(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	for name, rule := range map[string]faults.Rule{
		"answer lost":       {Fault: faults.LoseAnswer},
		"late and repeated": {Fault: faults.LateRequest},
	} {
		t.Run(name, func(t *testing.T) {
			rig := newLockRig(t, srv, lease.Options{TTL: faultTTL})
			first := mustLock(t, rig.Session, "n")
			next := goLock(bounded(t), rig.Session, "n")
			next.standing(t)

			late := make(chan struct{})
			rule.Method, rule.Match, rule.Times, rule.Until = faults.Txn, isLeave, 1, late
			rig.in.Inject(t, rule)
			var requests atomic.Int64
			rig.in.OnRequest(func(_ string, req any) {
				if isLeave(req) && requests.Add(1) > 1 && rule.Fault == faults.LoseAnswer {
					// The first has been done, so the next one's key is there before the repetition.
					assert.NotEqual(t, []string{first.Key()}, srv.Keys(t, "n/"))
				}
			})
			require.NoError(t, first.Unlock(bounded(t)))
			newer := next.granted(t)
			rig.in.OnRequest(nil)
			require.Greater(t, requests.Load(), int64(1))
			requireHeld(t, srv, newer)

			txns := rig.in.Answered(faults.Txn)
			close(late)
			if rule.Fault == faults.LateRequest {
				require.NoError(t, rig.in.AwaitAnswered(bounded(t), faults.Txn, txns+1))
			}
			requireHeld(t, srv, newer)
			require.NoError(t, newer.Unlock(bounded(t)))
			awaitQueue(t, srv, "n", 0)
		})
	}
}

// TestUnlock_leavesForeignKey plants a key of the very same name in place of the lock's: it is not ours to delete.
func TestUnlock_leavesForeignKey(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	s := newSession(t, srv.Client(t), lease.Options{})
	operator := srv.Client(t)
	l := mustLock(t, s, "n")
	_, err := operator.Delete(bounded(t), l.Key())
	require.NoError(t, err)
	_, err = operator.Put(bounded(t), l.Key(), "mine")
	require.NoError(t, err)

	lostFor(t, l.Unlock(bounded(t)), lease.KeyDeleted)
	require.Equal(t, []string{l.Key()}, srv.Keys(t, "n/"))
}

// TestUnlock_afterLoss is pain 13: an Unlock after a loss says so, with the reason. It is P5 as well: the handle's
// context ends once, with a cause that is typed and never a bare "context canceled".
func TestUnlock_afterLoss(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	for name, row := range map[string]struct {
		want lease.Reason
		lose func(t *testing.T, rig *lockRig, l *lease.Lock)
	}{
		"deadline": {lease.DeadlinePassed, func(t *testing.T, rig *lockRig, _ *lease.Lock) {
			t.Helper()
			rig.in.Inject(t, faults.Rule{Fault: faults.LoseRequest, Method: faults.LeaseKeepAlive, Silent: true})
		}},
		"lease revoked": {lease.LeaseGone, func(t *testing.T, rig *lockRig, _ *lease.Lock) {
			t.Helper()
			srv.Revoke(t, rig.leaseID())
		}},
		"key deleted": {lease.KeyDeleted, func(t *testing.T, rig *lockRig, l *lease.Lock) {
			t.Helper()
			require.NoError(t, second2(rig.client.Delete(bounded(t), l.Key())))
		}},
		"key overwritten": {lease.KeyOverwritten, func(t *testing.T, rig *lockRig, l *lease.Lock) {
			t.Helper()
			require.NoError(t, second2(rig.client.Put(bounded(t), l.Key(), "mine")))
		}},
		"session closed": {lease.SessionClosed, func(t *testing.T, rig *lockRig, _ *lease.Lock) {
			t.Helper()
			require.NoError(t, rig.Close(bounded(t)))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rig := newLockRig(t, srv, lease.Options{TTL: faultTTL})
			l := mustLock(t, rig.Session, name)
			token := l.Token()
			row.lose(t, rig, l)
			cause := awaitDone(t, l)
			lostFor(t, cause, row.want)
			require.NotErrorIs(t, cause, context.Canceled)
			require.Equal(t, row.want == lease.SessionClosed, errors.Is(cause, lease.ErrClosed))

			err := l.Unlock(bounded(t))
			lostFor(t, err, row.want)
			require.ErrorContains(t, err, name, "the error says which lock")
			require.NotErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, l.Unlock(bounded(t)), lease.ErrUnlocked)
			require.Equal(t, cause, context.Cause(l.Context()), "the cause is set once")
			require.Equal(t, token, l.Token())
			if row.want != lease.SessionClosed {
				// The session goes on, with a new lease where the old one is gone.
				again := mustLock(t, rig.Session, name)
				require.Greater(t, again.Token(), token)
				require.NoError(t, again.Unlock(bounded(t)))
			}
		})
	}
}

// TestUnlock_findsLossItself is pain 13 for a lock that is held too shortly to be watched: Unlock is the first to see
// that the key is not there.
func TestUnlock_findsLossItself(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rig := newLockRig(t, srv, lease.Options{})
	l, other := mustLock(t, rig.Session, "a"), mustLock(t, rig.Session, "b")
	require.NoError(t, second2(rig.client.Delete(bounded(t), l.Key())))
	lostFor(t, l.Unlock(bounded(t)), lease.KeyDeleted)
	requireHeld(t, srv, other)

	l = mustLock(t, rig.Session, "a")
	srv.Revoke(t, rig.leaseID())
	lostFor(t, l.Unlock(bounded(t)), lease.LeaseGone)
	lostFor(t, awaitDone(t, other), lease.LeaseGone)
}

// TestUnlock_endedContext checks that a caller who is in a hurry does not leave the key behind.
func TestUnlock_endedContext(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	s := newSession(t, srv.Client(t), lease.Options{})
	l := mustLock(t, s, "n")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errGaveUp)
	require.ErrorIs(t, l.Unlock(ctx), errGaveUp)
	require.ErrorIs(t, context.Cause(l.Context()), lease.ErrUnlocked)
	requireFree(t, srv, newSession(t, srv.Client(t), lease.Options{}), "n")
	require.Equal(t, lease.Held, s.Status().State)
}

// TestUnlock_endsContextFirst checks that the work is told to stop before anyone else can begin.
func TestUnlock_endsContextFirst(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rig := newLockRig(t, srv, lease.Options{})
	l := mustLock(t, rig.Session, "n")
	atRequest := make(chan error, 1)
	rig.in.OnRequest(func(_ string, req any) {
		if isLeave(req) {
			atRequest <- context.Cause(l.Context())
		}
	})
	require.NoError(t, l.Unlock(bounded(t)))
	require.ErrorIs(t, <-atRequest, lease.ErrUnlocked)
	require.NotErrorIs(t, context.Cause(l.Context()), lease.ErrLost)
}

// TestUnlock_whileLeaseIsLost checks that Unlock, stuck on a request, returns when the lease is lost meanwhile.
func TestUnlock_whileLeaseIsLost(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rig := newLockRig(t, srv, lease.Options{TTL: minTTL})
	l := mustLock(t, rig.Session, "n")
	rig.in.Inject(t, faults.Rule{Fault: faults.LoseRequest, Silent: true})
	begin := time.Now()
	err := l.Unlock(bounded(t))
	lostFor(t, err, lease.DeadlinePassed)
	t.Logf("returned after %v", time.Since(begin))
	requireFree(t, srv, newSession(t, srv.Client(t), lease.Options{}), "n") // by the server, when the lease expires
}
