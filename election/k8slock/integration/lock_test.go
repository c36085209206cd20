package integration_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
)

// etcd's own elections and mutexes of the same name, and of names around it, do not see the record.
func TestLock_isInNobodysQueue(t *testing.T) {
	srv := etcdtest.Start(t, etcdtest.Options{})
	a := newCandidate(t, srv.Client(t), name, nil)
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
