package cluster_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/lease"
)

// A new leader restarts every lease with its full TTL. If it is elected just before the holder's lease expires, the
// holder has already ended by its own clock, and the successor waits longer, not less.
func TestLeader_movedJustBeforeAnExpiry(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	for _, way := range rig.Ways {
		t.Run(way.Name, func(t *testing.T) {
			var witness rig.Witness
			name := "n " + way.Name
			line := rig.NewLine(t, cluster.Endpoints())
			s := rig.NewSession(t, line.Client, lease.Options{TTL: rig.MinTTL})
			held := take(t, &witness, way, s, name)
			granted := way.Wait(t, rig.NewSession(t, cluster.Client(t), lease.Options{TTL: rig.MinTTL}), name, &witness)
			rig.AwaitQueue(t, cluster.Client(t), name, 2)

			line.In.Inject(t, faults.Rule{Fault: faults.LoseRequest, Method: faults.LeaseKeepAlive, Silent: true})
			lostFor(t, held, lease.ReasonDeadlinePassed) // the lease lives on for the margin
			leader := cluster.Leader(t)
			next := cluster.Members[0]
			if next == leader {
				next = cluster.Members[1]
			}
			cluster.MoveLeader(t, next)
			second := rig.Await(t, granted, "the waiter was not served")
			require.Greater(t, second.Token(), held.Token())
			require.NoError(t, second.Free(rig.Bounded(t)))
			witness.Check(t, 2)
			rig.AwaitQueue(t, cluster.Client(t), name, 0)
		})
	}
}

// A holder that reaches only an isolated leader ends in time: either that leader does not renew the lease, or the
// holder does not trust its answers.
func TestLeader_isolatedWithItsClient(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	for _, way := range rig.Ways {
		t.Run(way.Name, func(t *testing.T) {
			var witness rig.Witness
			name := "n " + way.Name
			leader := cluster.Leader(t)
			s := rig.NewSession(t, leader.Client(t), lease.Options{TTL: rig.MinTTL})
			held := take(t, &witness, way, s, name)
			var others []string
			for _, m := range cluster.Members {
				if m != leader {
					others = append(others, m.Endpoint())
				}
			}
			client := etcdtest.NewClient(t, others)
			granted := way.Wait(t, rig.NewSession(t, client, lease.Options{TTL: 10 * rig.MinTTL}), name, &witness)
			rig.AwaitQueue(t, client, name, 2)

			cluster.Isolate(t, leader)
			cluster.NextLeader(t, leader)
			lostFor(t, held, lease.ReasonDeadlinePassed)
			second := rig.Await(t, granted, "the waiter was not served")
			require.Greater(t, second.Token(), held.Token())
			require.NoError(t, second.Err())
			cluster.Heal(t, leader)
			require.NoError(t, second.Free(rig.Bounded(t)))
			third := take(t, &witness, way, s, name)
			require.Greater(t, third.Token(), second.Token())
			require.NoError(t, third.Free(rig.Bounded(t)))
			witness.Check(t, 3)
			rig.AwaitQueue(t, client, name, 0)
		})
	}
}

// A member that knows of no leader serves no linearizable reads and no watches. Observers move to another member, and
// never show the isolated member's stale state.
func TestObserve_leavesAnIsolatedMember(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	isolated := cluster.Leader(t)
	o := rig.Observe(t, cluster.Client(t), "n")
	o.Sees(t, election.Leader{})
	cluster.Isolate(t, isolated)
	isolated.AwaitNoLeader(t)
	sound := cluster.NextLeader(t, isolated).Client(t)
	s := rig.NewSession(t, sound, lease.Options{})
	l, err := election.Campaign(rig.Bounded(t), s, "n", election.Options{Value: "value"})
	require.NoError(t, err)
	leader, err := election.Current(rig.Bounded(t), sound, "n")
	require.NoError(t, err)
	require.EqualValues(t, l.Token(), leader.Revision)
	o.Sees(t, leader)

	cut := isolated.Client(t)
	for _, ask := range []func(context.Context) error{
		func(ctx context.Context) error { _, err := election.Current(ctx, cut, "n"); return err },
		func(ctx context.Context) error { _, err := election.Candidates(ctx, cut, "n"); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		require.ErrorIs(t, ask(ctx), context.DeadlineExceeded)
		cancel()
	}
	joined := rig.Observe(t, cut, "n")
	joined.SeesNoMore(t)
	cluster.Heal(t, isolated)
	joined.Sees(t, leader)
	require.NoError(t, l.Resign(rig.Bounded(t)))
	o.Sees(t, election.Leader{})
	o.SeesNoMore(t)
}

// A transaction compares the state of the cluster. So an isolated member does not answer one, even if it neither reads
// nor writes.
func TestTxn_isNotAnsweredByAMemberThatLags(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	lags := cluster.Leader(t)
	client := lags.Client(t)
	_, err := client.Put(rig.Bounded(t), "key", "old")
	require.NoError(t, err)
	cluster.Isolate(t, lags)
	ctx, cancel := context.WithTimeout(rig.Bounded(t), time.Second)
	defer cancel()
	_, err = etcd.Of(client).Once(ctx).Txn([]clientv3.Cmp{clientv3.Compare(clientv3.Value("key"), "=", "old")}, nil, nil)
	require.Error(t, err)
}
