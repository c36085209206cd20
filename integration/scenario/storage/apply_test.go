package storage_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// A defragmentation holds a member up for as long as it takes. With others there, no request has to wait for it. Events do:
// a waiter whose watch stands there is told of its turn when the member goes on.
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
				// It lasts until a whole turn was taken and the lease was renewed.
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
