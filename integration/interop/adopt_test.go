package interop_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// adopt is a session on somebody else's lease that the test's cleanup closes.
func adopt(t *testing.T, client *clientv3.Client, id clientv3.LeaseID, opts lease.Options) *lease.Session {
	t.Helper()
	s, err := lease.Adopt(rig.Bounded(t), client, id, opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), rig.Patience)
		defer cancel()
		_ = s.Close(ctx) // the test may have closed it
	})
	return s
}

func TestAdopt_putsLocksOnTheLeaseAndCloseTakesOnlyThoseAway(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	owner := newEtcdSession(t, client, concurrency.WithTTL(5))
	theirs := concurrency.NewMutex(owner, "theirs")
	require.NoError(t, theirs.Lock(rig.Bounded(t)))

	s := adopt(t, client, owner.Lease(), lease.Options{})
	require.Equal(t, owner.Lease(), s.Status().LeaseID)
	require.Equal(t, 5*time.Second, s.Status().TTL)
	var locks []*lease.Lock
	for i := range 100 { // more than one sweep of the reaper takes
		locks = append(locks, rig.MustLock(t, s, "ours/"+strconv.Itoa(i)))
	}
	for _, kv := range srv.KeyValues(t, "ours/") {
		require.Equal(t, int64(owner.Lease()), kv.Lease, "%s", kv.Key)
	}

	require.NoError(t, s.Close(rig.Bounded(t)))
	for _, l := range locks {
		require.ErrorIs(t, rig.AwaitEnd(t, l.Context()), lease.ErrClosed)
	}
	require.Equal(t, []string{theirs.Key()}, srv.Keys(t, ""))
	require.Equal(t, []clientv3.LeaseID{owner.Lease()}, srv.Leases(t))
	select {
	case <-owner.Done():
		require.FailNow(t, "the owner's session has ended")
	default:
	}
	require.NoError(t, theirs.Unlock(rig.Bounded(t)))
}

func TestAdopt_endsWithTheLeaseAndHealsOntoOneOfItsOwn(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	owner := newEtcdSession(t, client)
	s := adopt(t, client, owner.Lease(), lease.Options{TTL: 7 * time.Second})
	first, second := rig.MustLock(t, s, "first"), rig.MustLock(t, s, "second")

	require.NoError(t, owner.Close()) // which revokes the lease
	for _, l := range []*lease.Lock{first, second} {
		var lost *lease.LostError
		require.ErrorAs(t, rig.AwaitEnd(t, l.Context()), &lost)
		require.Equal(t, lease.ReasonLeaseGone, lost.Reason)
		require.Equal(t, owner.Lease(), lost.LeaseID)
		require.ErrorIs(t, l.Unlock(rig.Bounded(t)), lease.ErrLost)
	}

	again := rig.MustLock(t, s, "first")
	require.Greater(t, again.Token(), second.Token())
	require.NotEqual(t, owner.Lease(), s.Status().LeaseID)
	require.Equal(t, 7*time.Second, s.Status().TTL)
	require.Equal(t, []clientv3.LeaseID{s.Status().LeaseID}, srv.Leases(t))
	require.NoError(t, s.Close(rig.Bounded(t)))
	require.Empty(t, srv.Leases(t))
	require.Empty(t, srv.Keys(t, ""))
}

// The other way round: etcd's own locks on a session of ours.
func TestSession_lendsItsLeaseToEtcdsOwnLocks(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	s := rig.NewSession(t, client, lease.Options{TTL: rig.MinTTL})
	id := s.Status().LeaseID
	borrower := newEtcdSession(t, client, concurrency.WithLease(id))
	mutex := concurrency.NewMutex(borrower, "job")

	require.NoError(t, mutex.Lock(rig.Bounded(t)))
	_, err := s.TryLock(rig.Bounded(t), "job")
	require.ErrorIs(t, err, lease.ErrLocked)
	ours := enterQueue(t, srv, sessionPeer(s), "job")
	ours.requireWaiting(t)
	require.NoError(t, mutex.Unlock(rig.Bounded(t)))
	held := ours.await(t)
	require.NotEqual(t, mutex.Key(), held.key)
	require.ErrorIs(t, mutex.TryLock(rig.Bounded(t)), concurrency.ErrLocked)
	require.Equal(t, []string{held.key}, srv.Keys(t, "job/"), "ours has a key of its own on the same lease")
	require.Equal(t, int64(id), srv.KeyValues(t, held.key)[0].Lease)
	ours.unlock(t)

	// Orphan ends their renewals. Ours go on, well past the TTL.
	l := rig.MustLock(t, s, "job")
	borrower.Orphan()
	orphaned := time.Now()
	require.Eventually(t, func() bool {
		return s.Status().Deadline.Sub(orphaned) > 3*rig.MinTTL
	}, rig.Patience, 10*time.Millisecond)
	require.Equal(t, lease.StateHeld, s.Status().State)
	require.Equal(t, id, s.Status().LeaseID)
	require.NoError(t, l.Context().Err())
	require.NoError(t, l.Unlock(rig.Bounded(t)))
}
