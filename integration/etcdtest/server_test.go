package etcdtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/leasefence/leasefence/integration/etcdtest"
)

// bounded returns a context that ends a test which hangs.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestServer_smallestTTLIsTwoSeconds(t *testing.T) {
	client := etcdtest.Start(t, etcdtest.Options{}).Client(t)
	grant, err := client.Grant(bounded(t), 1)
	require.NoError(t, err)
	require.Equal(t, int64(2), grant.TTL)
}

func TestServer_restartKeepsData(t *testing.T) {
	for name, end := range map[string]func(*etcdtest.Server){
		"stop":  (*etcdtest.Server).Stop,
		"crash": (*etcdtest.Server).Crash,
	} {
		t.Run(name, func(t *testing.T) {
			ctx := bounded(t)
			srv := etcdtest.Start(t, etcdtest.Options{})
			endpoint := srv.Endpoint()
			client := srv.Client(t)
			grant, err := client.Grant(ctx, 60)
			require.NoError(t, err)
			_, err = client.Put(ctx, "key", "value", clientv3.WithLease(grant.ID))
			require.NoError(t, err)

			end(srv)
			require.False(t, srv.Running())
			end(srv)
			srv.Restart(t)
			require.True(t, srv.Running())
			require.Equal(t, endpoint, srv.Endpoint())
			require.Equal(t, []string{"key"}, srv.Keys(t, ""))
			require.Equal(t, []clientv3.LeaseID{grant.ID}, srv.Leases(t))
			// The client of before finds it again.
			resp, err := client.Get(ctx, "key")
			require.NoError(t, err)
			require.Equal(t, "value", string(resp.Kvs[0].Value))
		})
	}
}

func TestServer_stopDoesNotWaitForWatches(t *testing.T) {
	ctx := bounded(t)
	srv := etcdtest.Start(t, etcdtest.Options{})
	watch := srv.Client(t).Watch(ctx, "key", clientv3.WithCreatedNotify())
	require.True(t, (<-watch).Created)

	start := time.Now()
	srv.Stop()
	require.Less(t, time.Since(start), 5*time.Second, "etcd gives up waiting for clients after 7s")
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

func TestServer_compactEndsOldWatches(t *testing.T) {
	ctx := bounded(t)
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	for range 3 {
		_, err := client.Put(ctx, "key", "")
		require.NoError(t, err)
	}
	before := srv.Revision(t)
	require.Equal(t, before, srv.Compact(t))

	resp := <-client.Watch(ctx, "key", clientv3.WithRev(2))
	require.ErrorIs(t, resp.Err(), rpctypes.ErrCompacted)
	require.Equal(t, before, resp.CompactRevision)
}

func TestServer_configureAppliesToEachStart(t *testing.T) {
	starts := 0
	srv := etcdtest.Start(t, etcdtest.Options{Configure: func(cfg *embed.Config) {
		starts++
		cfg.MaxTxnOps = 1
	}})
	srv.Restart(t)
	require.Equal(t, 2, starts)
	_, err := srv.Client(t).Txn(bounded(t)).Then(clientv3.OpPut("a", ""), clientv3.OpPut("b", "")).Commit()
	require.ErrorIs(t, err, rpctypes.ErrTooManyOps)
}
