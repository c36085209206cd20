package interop_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// The reverse of lease.Adopt: etcd's own locks use the lease of a Session.
func TestSession_lendsItsLeaseToEtcdsOwnLocks(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	s := rig.NewSession(t, client, lease.Options{})
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
	require.Equal(t, []string{held.key}, srv.Keys(t, "job/"), "our lock has its own key on the same lease")
	require.Equal(t, int64(id), srv.KeyValues(t, held.key)[0].Lease)
	ours.unlock(t)
}
