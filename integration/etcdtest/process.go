//go:build unix

package etcdtest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdproc"
)

// Cluster is a set of one or more etcd servers that form one cluster, each in a separate process. It is not safe for
// concurrent use.
type Cluster struct{ *etcdproc.Cluster }

// StartCluster runs a new cluster of n members until the test ends. The processes run the test's binary, where [Main]
// starts the server.
func StartCluster(tb testing.TB, n int, opts Options) *Cluster {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), readyTimeout)
	defer cancel()
	cluster, err := etcdproc.Start(ctx, tb.TempDir(), n, opts)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, cluster.Kill()) })
	return &Cluster{cluster}
}

// Client returns a client of all members, as [NewClient] does.
func (c *Cluster) Client(tb testing.TB, opts ...ClientOption) *clientv3.Client {
	tb.Helper()
	return NewClient(tb, c.Endpoints(), opts...)
}
