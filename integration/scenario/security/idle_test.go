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

// A lease that holds nothing is everybody's: etcd lets a user without permission on our prefix attach a key of its own
// to it, and one without any role revoke it. That costs the session a new lease, and no acquisition. Its ID cannot be
// guessed; when a lock is held, others can neither attach to the lease nor revoke nor list it.
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

	s := rig.NewSession(t, srv.app(t), lease.Options{Prefix: "jobs/", TTL: longTTL})
	seen := map[int64]bool{}
	for range 3 {
		_, err := stranger.Revoke(rig.Bounded(t), s.Status().LeaseID)
		require.NoError(t, err, "as etcd has it")
		require.NoError(t, rig.MustLock(t, s, "n").Unlock(rig.Bounded(t)))

		_, err = neighbour.Put(rig.Bounded(t), "own", "", clientv3.WithLease(s.Status().LeaseID))
		require.NoError(t, err, "as etcd has it")
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
	// Where no lease has a key that somebody may not read, all are listed to everybody.
	require.NoError(t, second(srv.root.Delete(rig.Bounded(t), "own")))
	leases, err := stranger.Leases(rig.Bounded(t))
	require.NoError(t, err, "as etcd has it")
	require.NotEmpty(t, leases.Leases)
}
