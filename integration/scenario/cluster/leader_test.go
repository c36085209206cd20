package cluster_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/scenario/rig"
	"github.com/leasefence/leasefence/lease"
)

// A leader of the cluster that comes to office just before a lease expires gives it its whole TTL again. The holder has
// ended by then, by its own clock, and its successor has to wait for longer, no less.
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
			granted := wait(t, &witness, way, rig.NewSession(t, cluster.Client(t), lease.Options{TTL: rig.MinTTL}), name)
			rig.AwaitQueue(t, cluster.Client(t), name, 2)

			line.In.Inject(t, faults.Rule{Fault: faults.LoseRequest, Method: faults.LeaseKeepAlive, Silent: true})
			lostFor(t, held, lease.DeadlinePassed) // a margin before the server would let the lease expire
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

// A holder that reaches nobody but a leader which has lost the others ends in time: that leader must not renew, or must
// not be believed.
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
			granted := wait(t, &witness, way, rig.NewSession(t, client, lease.Options{TTL: 10 * rig.MinTTL}), name)
			rig.AwaitQueue(t, client, name, 2)

			cluster.Isolate(t, leader)
			cluster.NextLeader(t, leader)
			lostFor(t, held, lease.DeadlinePassed)
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
