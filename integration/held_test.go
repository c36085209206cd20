package integration_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/lease"
)

// TestLock_lossIsNoticed is pain 12: a holder learns of a loss that no clock can tell from a watch, not from the next
// renewal, which is seconds away, nor from its deadline.
func TestLock_lossIsNoticed(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	for name, row := range map[string]struct {
		want lease.Reason
		lose func(t *testing.T, rig *lockRig, l *lease.Lock)
	}{
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
	} {
		t.Run(name, func(t *testing.T) {
			rig := newLockRig(t, srv, lease.Options{})
			l, other := mustLock(t, rig.Session, "n"), mustLock(t, rig.Session, "other")
			require.NoError(t, rig.in.AwaitAnswered(bounded(t), faults.Watch, 2))
			require.NoError(t, rig.in.AwaitAnswered(bounded(t), faults.Txn, 4)) // to enter, and the read after each watch
			renewals := rig.in.Sent(faults.LeaseKeepAlive)
			begin := time.Now()
			row.lose(t, rig, l)
			lostFor(t, awaitDone(t, l), row.want)
			t.Logf("noticed after %v", time.Since(begin))
			require.Equal(t, renewals, rig.in.Sent(faults.LeaseKeepAlive), "no renewal told it")
			if row.want == lease.LeaseGone {
				lostFor(t, awaitDone(t, other), lease.LeaseGone) // the lease carried all
			} else {
				requireHeld(t, srv, other) // the lease carries on
			}
			require.Equal(t, row.want == lease.LeaseGone, rig.Status().State == lease.Lost)
		})
	}
}

// TestLock_grantedAfterWaitIsWatched is pain 12 for a lock that was waited for: the waiter's watch goes on.
func TestLock_grantedAfterWaitIsWatched(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rival := newSession(t, srv.Client(t), lease.Options{})
	holder := mustLock(t, rival, "n")
	rig, waiter, key := waiterBehind(t, srv, holder, lease.Options{})
	require.NoError(t, holder.Unlock(bounded(t)))
	l := waiter.granted(t)
	require.NoError(t, second2(rig.client.Delete(bounded(t), key)))
	lostFor(t, awaitDone(t, l), lease.KeyDeleted)
}

// TestLock_lossDuringWatchOpening is pain 12 for what happens right before the watch on the key exists: the read that
// follows tells.
func TestLock_lossDuringWatchOpening(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	operator := srv.Client(t)
	for name, row := range map[string]struct {
		want lease.Reason
		lose func(t *testing.T, key string)
	}{
		"deleted": {lease.KeyDeleted, func(t *testing.T, key string) {
			t.Helper()
			require.NoError(t, second2(operator.Delete(bounded(t), key)))
		}},
		"overwritten": {lease.KeyOverwritten, func(t *testing.T, key string) {
			t.Helper()
			require.NoError(t, second2(operator.Put(bounded(t), key, "mine")))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			rig := newLockRig(t, srv, lease.Options{})
			lost := make(chan struct{})
			opening := rig.in.Inject(t, faults.Rule{Fault: faults.DelayRequest, Method: faults.Watch, Times: 1, Until: lost})
			l := mustLock(t, rig.Session, "n")
			awaitClosed(t, opening.Hit(), "no watch is opened")
			row.lose(t, l.Key())
			close(lost)
			lostFor(t, awaitDone(t, l), row.want)
			lostFor(t, l.Unlock(bounded(t)), row.want)
			awaitQueue(t, srv, "n", 0)
		})
	}
}

// TestLock_shortHoldOpensNoWatch checks what pain 12 must not cost: a short critical section opens no watch, and takes
// two requests.
func TestLock_shortHoldOpensNoWatch(t *testing.T) {
	t.Parallel()
	const turns, long = 50, 200 * time.Millisecond
	srv := etcdtest.Start(t, etcdtest.Options{})
	rig := newLockRig(t, srv, lease.Options{})
	worker := srv.Client(t)
	sent := countRequests(rig.in)
	slow := 0 // on a machine that is busy with other things
	for range turns {
		l := mustLock(t, rig.Session, "n")
		begin := time.Now()
		require.NoError(t, second2(worker.Put(bounded(t), "data", "")))
		if time.Since(begin) > long {
			slow++
		}
		require.NoError(t, l.Unlock(bounded(t)))
	}
	require.Less(t, slow, turns/2)
	if slow == 0 {
		require.Zero(t, rig.in.Sent(faults.Watch))
		require.Equal(t, int64(2*turns), sent.Load())
	}
}

// TestLock_tokenIsFixed is pain 40: a handle that was lost never shows its successor's token, and neither do its
// context and its comparison.
func TestLock_tokenIsFixed(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rig := newLockRig(t, srv, lease.Options{Era: 1})
	l := mustLock(t, rig.Session, "n")
	token := l.Token()
	require.Equal(t, uint16(1), token.Era())
	guarded := func(l *lease.Lock, value string) bool {
		resp, err := rig.client.Txn(bounded(t)).If(l.Held()).Then(clientv3.OpPut("data", value)).Commit()
		require.NoError(t, err)
		return resp.Succeeded
	}
	require.True(t, guarded(l, "mine"))

	srv.Revoke(t, rig.leaseID())
	successor := mustLock(t, newSession(t, srv.Client(t), lease.Options{Era: 1}), "n")
	lostFor(t, awaitDone(t, l), lease.LeaseGone)
	require.Greater(t, successor.Token(), token)
	require.Equal(t, token, l.Token())
	carried, ok := fence.FromContext(l.Context())
	require.True(t, ok)
	require.Equal(t, token, carried)
	require.False(t, guarded(l, "stale"))
	require.True(t, guarded(successor, "new"))
	require.NoError(t, successor.Unlock(bounded(t)))
	require.False(t, guarded(successor, "stale too"))
	require.Equal(t, "new", string(srv.KeyValues(t, "data")[0].Value))
}

// TestLock_contextIsTheHandles checks that a lock outlives the context of the call that acquired it.
func TestLock_contextIsTheHandles(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	s := newSession(t, srv.Client(t), lease.Options{})
	ctx, cancel := context.WithCancel(bounded(t))
	l, err := s.Lock(ctx, "n")
	require.NoError(t, err)
	cancel()
	requireHeld(t, srv, l)
	token, ok := fence.FromContext(l.Context())
	require.True(t, ok)
	require.Equal(t, l.Token(), token)
	require.NoError(t, l.Unlock(bounded(t)))
}
