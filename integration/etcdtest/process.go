//go:build unix

package etcdtest

import (
	"cmp"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

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

// Learner adds a learner to the cluster until the test ends, and returns its endpoint. It runs in the test's process.
func (c *Cluster) Learner(tb testing.TB) string {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), readyTimeout)
	defer cancel()
	members, err := etcdproc.NewMembers(tb.TempDir(), 1)
	require.NoError(tb, err)
	m := members[0]
	m.Name, m.Alone = "learner", false
	client := c.Client(tb)
	var all *clientv3.MemberAddResponse
	require.Eventually(tb, func() bool { // etcd refuses until its members have been connected for 5 s
		all, err = client.MemberAddAsLearner(ctx, []string{"http://" + m.PeerAddr})
		return err == nil
	}, readyTimeout, 100*time.Millisecond)
	var cluster []string
	for _, one := range all.Members {
		cluster = append(cluster, cmp.Or(one.Name, m.Name)+"="+one.PeerURLs[0]) // the new one has no name yet
	}
	m.Cluster = strings.Join(cluster, ",")
	cfg := m.Config()
	cfg.ClusterState = embed.ClusterStateFlagExisting
	server, err := embed.StartEtcd(cfg)
	require.NoError(tb, err)
	tb.Cleanup(server.Close)
	select {
	case <-server.Server.ReadyNotify():
	case <-ctx.Done():
		require.Fail(tb, "the learner is not ready")
	}
	return m.ClientAddr
}
