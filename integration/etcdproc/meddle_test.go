//go:build unix

package etcdproc_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/rig"
)

func dial(t *testing.T, endpoints ...string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

// leader waits until a member other than not leads, and returns it.
func leader(t *testing.T, client *clientv3.Client, c *etcdproc.Cluster, not *etcdproc.Process) *etcdproc.Process {
	t.Helper()
	ctx := rig.Bounded(t)
	for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		for _, m := range c.Members {
			status, err := client.Status(ctx, m.Endpoint())
			if err == nil && m != not && status.Leader == status.Header.MemberId {
				return m
			}
		}
	}
	require.FailNow(t, "no leader")
	return nil
}

func TestCluster_isolatesAMember(t *testing.T) {
	c, err := etcdproc.Start(rig.Bounded(t), t.TempDir(), 3, etcdproc.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Kill()) }()
	client := dial(t, c.Endpoints()...)
	old := leader(t, client, c, nil)
	require.NoError(t, c.Isolate(old))
	next := leader(t, client, c, old)
	_, err = dial(t, next.Endpoint()).Put(rig.Bounded(t), "key", "new")
	require.NoError(t, err)
	resp, err := dial(t, old.Endpoint()).Get(rig.Bounded(t), "key", clientv3.WithSerializable())
	require.NoError(t, err)
	require.Empty(t, resp.Kvs, "the isolated member has the new key")

	require.NoError(t, c.Rejoin(old))
	resp, err = dial(t, old.Endpoint()).Get(rig.Bounded(t), "key")
	require.NoError(t, err)
	require.Len(t, resp.Kvs, 1)
}
