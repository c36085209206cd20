//go:build unix

package etcdproc_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/leasefence/leasefence/integration/etcdproc"
)

func TestMain(m *testing.M) {
	etcdproc.Serve()
	goleak.VerifyTestMain(m)
}

// bounded is a context that ends a test which hangs.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func requirePut(t *testing.T, c *etcdproc.Cluster) {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: c.Endpoints(), Logger: zap.NewNop()})
	require.NoError(t, err)
	ctx := bounded(t)
	// A write fails that was on its way to a leader which is gone.
	for _, err = client.Put(ctx, "key", "value"); err != nil && ctx.Err() == nil; {
		_, err = client.Put(ctx, "key", "value")
	}
	require.NoError(t, err)
	require.NoError(t, client.Close())
}

func TestCluster_servesWithoutOneOfThree(t *testing.T) {
	c, err := etcdproc.Start(bounded(t), t.TempDir(), 3, etcdproc.Options{})
	require.NoError(t, err)
	require.Len(t, c.Endpoints(), 3)
	requirePut(t, c)

	require.NoError(t, c.Members[0].Kill())
	<-c.Members[0].Ended()
	requirePut(t, c)
	require.NoError(t, c.Members[0].Restart(bounded(t)))
	require.NoError(t, c.Kill())
	require.NoError(t, c.Kill())
}

func TestStart_endsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := etcdproc.Start(ctx, t.TempDir(), 1, etcdproc.Options{})
	require.ErrorIs(t, err, context.Canceled)
}

func TestProcess_refusesSignalsWhenItDoesNotRun(t *testing.T) {
	c, err := etcdproc.Start(bounded(t), t.TempDir(), 1, etcdproc.Options{})
	require.NoError(t, err)
	require.NoError(t, c.Kill())
	require.Error(t, c.Members[0].Pause())
	require.Error(t, c.Members[0].Resume())
}
