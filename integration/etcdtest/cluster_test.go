package etcdtest_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdtest"
)

// One cluster serves several steps: each change of leader takes a second or two.
func TestCluster_changesItsLeaderAndKeepsData(t *testing.T) {
	ctx := bounded(t)
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	require.Len(t, cluster.Endpoints(), 3)
	_, err := cluster.Client(t).Put(ctx, "key", "")
	require.NoError(t, err)
	requireKey := func(s *etcdtest.Server) {
		require.Equal(t, []string{"key"}, s.Keys(t, ""))
	}

	// Moved.
	first := cluster.Leader(t)
	second := follower(t, cluster)
	cluster.MoveLeader(t, second)
	require.Same(t, second, cluster.Leader(t))
	require.NotSame(t, first, second)

	// Crashed and back.
	second.Crash()
	third := cluster.NextLeader(t, second)
	require.NotSame(t, second, third)
	requireKey(third)
	second.Restart(t)
	requireKey(second)

	// Isolated: a client of it alone, which asks for a leader, is told that there is none.
	cluster.Isolate(t, third)
	fourth := cluster.NextLeader(t, third)
	require.NotSame(t, third, fourth)
	requireKey(fourth)
	third.AwaitNoLeader(t)
	_, err = third.Client(t).Get(clientv3.WithRequireLeader(ctx), "key", clientv3.WithSerializable())
	require.ErrorContains(t, err, "no leader")
	cluster.Heal(t, third)
	requireKey(third)

	// All at once.
	cluster.Restart(t)
	requireKey(cluster.Leader(t))
}

// follower returns a member that is not the leader.
func follower(t *testing.T, cluster *etcdtest.Cluster) *etcdtest.Server {
	t.Helper()
	leader := cluster.Leader(t)
	for _, m := range cluster.Members {
		if m != leader {
			return m
		}
	}
	require.Fail(t, "no follower")
	return nil
}
