package storage_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// While a member is defragmented, it answers nothing. Requests go to the other members. Only events wait: a waiter
// whose watch is at that member learns of its turn when the defragmentation ends.
func TestDefragment_holdsNobodyUp(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	for _, way := range rig.Ways {
		t.Run(way.Name, func(t *testing.T) {
			s := rig.NewSession(t, cluster.Client(t), lease.Options{TTL: rig.MinTTL})
			id := s.Status().LeaseID
			held := way.MustTake(t, s, "held "+way.Name)
			var last *rig.Hold
			for _, m := range cluster.Members {
				release := stall(t, m)
				// The stall lasts for a whole turn and a renewal of the lease.
				l := way.MustTake(t, s, "turn "+way.Name)
				if last != nil {
					require.Greater(t, l.Token(), last.Token())
				}
				last = l
				require.NoError(t, l.Free(rig.Bounded(t)))
				rig.AwaitRenewal(t, s)
				release()
				_, err := cluster.Client(t).Defragment(rig.Bounded(t), m.Endpoint())
				require.NoError(t, err)
			}
			require.NoError(t, held.Err())
			require.Equal(t, id, s.Status().LeaseID)
			require.NoError(t, held.Free(rig.Bounded(t)))
		})
	}
}
