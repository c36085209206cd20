package etcdtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdtest"
)

// bounded returns a context that ends a test which hangs.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestServer_keysAndLeases(t *testing.T) {
	ctx := bounded(t)
	srv := etcdtest.Start(t, etcdtest.Options{})
	require.Equal(t, []string{}, srv.Keys(t, ""))
	require.Equal(t, []clientv3.LeaseID{}, srv.Leases(t))

	client := srv.Client(t)
	grant, err := client.Grant(ctx, 60)
	require.NoError(t, err)
	for _, key := range []string{"b/2", "b/1", "a/1"} {
		_, err = client.Put(ctx, key, "", clientv3.WithLease(grant.ID))
		require.NoError(t, err)
	}
	require.Equal(t, []string{"a/1", "b/1", "b/2"}, srv.Keys(t, ""))
	require.Equal(t, []string{"b/1", "b/2"}, srv.Keys(t, "b/"))
	require.Equal(t, []clientv3.LeaseID{grant.ID}, srv.Leases(t))

	srv.Revoke(t, grant.ID)
	require.Empty(t, srv.Keys(t, ""))
	require.Empty(t, srv.Leases(t))
}
