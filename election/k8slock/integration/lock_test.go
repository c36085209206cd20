package integration_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
)

// A real server behaves as the fake one in the package's own tests.
func TestLock_againstARealServer(t *testing.T) {
	srv := etcdtest.Start(t, etcdtest.Options{})
	a, b := newCandidate(t, srv), newCandidate(t, srv)
	ctx := t.Context()
	_, _, err := a.Get(ctx)
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	require.NoError(t, a.Create(ctx, a.record()))
	kvs := srv.KeyValues(t, "")
	require.Len(t, kvs, 1)
	require.Equal(t, key, string(kvs[0].Key))
	token, ok := a.Token()
	require.True(t, ok)
	require.Equal(t, kvs[0].ModRevision, token.Revision())
	require.Equal(t, []clientv3.LeaseID{clientv3.LeaseID(kvs[0].Lease)}, srv.Leases(t))

	require.True(t, apierrors.IsAlreadyExists(b.Create(ctx, b.record())))
	require.True(t, apierrors.IsNotFound(b.Update(ctx, b.record())))
	_, _, err = b.Get(ctx)
	require.NoError(t, err)
	require.NoError(t, a.Update(ctx, a.record()))
	require.True(t, apierrors.IsConflict(b.Update(ctx, b.record())))
	require.Eventually(t, func() bool { return len(srv.Leases(t)) == 1 }, time.Minute, time.Millisecond, "b's acquisition leaves no lease")

	_, _, err = b.Get(ctx)
	require.NoError(t, err)
	require.NoError(t, b.Update(ctx, b.record()))
	next, ok := b.Token()
	require.True(t, ok)
	require.Greater(t, next, token)
	srv.Revoke(t, clientv3.LeaseID(kvs[0].Lease))
	require.Len(t, srv.Keys(t, key), 1, "the record has moved to another lease")

	released := resourcelock.LeaderElectionRecord{LeaseDurationSeconds: 1}
	require.True(t, apierrors.IsConflict(a.Update(ctx, released)))
	_, _, err = a.Get(ctx)
	require.NoError(t, err)
	require.ErrorContains(t, a.Update(ctx, released), "not this candidate's")

	srv.Revoke(t, srv.Leases(t)[0])
	require.ErrorIs(t, b.Update(ctx, b.record()), rpctypes.ErrLeaseNotFound)
	require.Empty(t, srv.Keys(t, ""))
	_, ok = b.Token()
	require.False(t, ok)
}

// etcd's own elections and mutexes of the same name, and of names around it, do not see the record.
func TestLock_isInNobodysQueue(t *testing.T) {
	srv := etcdtest.Start(t, etcdtest.Options{})
	a := newCandidate(t, srv)
	require.NoError(t, a.Create(t.Context(), a.record()))
	session, err := concurrency.NewSession(srv.Client(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, session.Close()) }()
	for _, other := range []string{name, "jobs", "k8slock", "k8slock/jobs", "k8slock/" + name} {
		ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
		defer cancel()
		election := concurrency.NewElection(session, other)
		require.NoError(t, election.Campaign(ctx, "x"), other)
		require.NoError(t, election.Resign(ctx)) // or else the nested names would block each other
	}
	require.NoError(t, a.Update(t.Context(), a.record()))
}

// clientLease is the lease that the record is attached to.
func clientLease(t *testing.T, srv *etcdtest.Server) clientv3.LeaseID {
	t.Helper()
	kvs := srv.KeyValues(t, key)
	require.Len(t, kvs, 1)
	return clientv3.LeaseID(kvs[0].Lease)
}
