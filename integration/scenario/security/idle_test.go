package security_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// etcd does not protect a lease without keys: a user without permission on our prefix can attach a key to it, and a
// user without any role can revoke it. That costs the session a new lease, but no acquisition fails. The lease's ID
// cannot be guessed. While a lock is held, other users can neither attach keys to the lease nor revoke nor list it.
func TestSession_idleLeaseIsAttacked(t *testing.T) {
	t.Parallel()
	srv := startSecured(t)
	user := func(name string) *clientv3.Client {
		require.NoError(t, second(srv.root.UserAdd(rig.Bounded(t), name, "password")))
		return srv.Client(t, etcdtest.User(name, "password"))
	}
	stranger, neighbour := user("stranger"), user("neighbour")
	require.NoError(t, second(srv.root.RoleAdd(rig.Bounded(t), "own")))
	require.NoError(t, second(srv.root.RoleGrantPermission(rig.Bounded(t), "own", "own", "", clientv3.PermissionType(clientv3.PermReadWrite))))
	require.NoError(t, second(srv.root.UserGrantRole(rig.Bounded(t), "neighbour", "own")))

	s := newSession(t, srv.app(t), lease.Options{TTL: longTTL})
	seen := map[int64]bool{}
	for range 3 {
		_, err := stranger.Revoke(rig.Bounded(t), s.Status().LeaseID)
		require.NoError(t, err, "etcd allows it")
		require.NoError(t, rig.MustLock(t, s, "n").Unlock(rig.Bounded(t)))

		_, err = neighbour.Put(rig.Bounded(t), "own", "", clientv3.WithLease(s.Status().LeaseID))
		require.NoError(t, err, "etcd allows it")
		_, err = srv.app(t).KeepAliveOnce(rig.Bounded(t), s.Status().LeaseID)
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		l := rig.MustLock(t, s, "n")
		id := s.Status().LeaseID
		require.False(t, seen[int64(id)>>16], "IDs are near each other")
		seen[int64(id)>>16] = true

		_, err = neighbour.Put(rig.Bounded(t), "own", "", clientv3.WithLease(id))
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		_, err = stranger.Revoke(rig.Bounded(t), id)
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		_, err = stranger.Leases(rig.Bounded(t))
		require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		require.NoError(t, l.Err())
		require.NoError(t, l.Unlock(rig.Bounded(t)))
	}
	// A foreign key in the queue and the loss of a lock are logged, without keys and values.
	require.NoError(t, second(srv.root.Put(rig.Bounded(t), "jobs/n/stray", secret("a value", "put by hand"))))
	l := rig.MustLock(t, s, "n")
	require.NoError(t, second(srv.root.Delete(rig.Bounded(t), l.Key())))
	rig.RequireLost(t, rig.AwaitEnd(t, l.Context()), lease.ReasonKeyDeleted)
	// If a user may read all keys of all leases, etcd lists all leases to that user, here those without keys.
	require.NoError(t, second(srv.root.Delete(rig.Bounded(t), "own")))
	leases, err := stranger.Leases(rig.Bounded(t))
	require.NoError(t, err, "etcd allows it")
	require.NotEmpty(t, leases.Leases)
}
