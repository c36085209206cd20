//go:build unix

package cluster_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/scenario/rig"
	"github.com/leasefence/leasefence/lease"
)

// startProcesses runs three members, each in a process of its own, until the test ends.
func startProcesses(t *testing.T, opts etcdproc.Options) *etcdproc.Cluster {
	t.Helper()
	c, err := etcdproc.Start(rig.Bounded(t), t.TempDir(), 3, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Kill()) })
	return c
}

// Members are restarted in order, one after the other, as for an upgrade. Nobody loses anything by it.
func TestMembers_restartedOneByOne(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	for _, way := range rig.Ways {
		t.Run(way.Name, func(t *testing.T) {
			crowd := gather(t, way, cluster.Endpoints(), "turns "+way.Name, 5*time.Second)
			s := rig.NewSession(t, cluster.Client(t), lease.Options{TTL: 5 * time.Second})
			id := s.Status().LeaseID
			held := take(t, &crowd.Witness, way, s, "turns "+way.Name)
			granted := wait(t, &crowd.Witness, way, rig.NewSession(t, cluster.Client(t), lease.Options{TTL: 15 * time.Second}), "turns "+way.Name)
			for _, m := range cluster.Members {
				m.Restart(t)
				awaitRenewal(t, s)
			}
			require.NoError(t, held.Err())
			require.Equal(t, id, s.Status().LeaseID)
			require.Empty(t, granted)
			require.NoError(t, held.Free(rig.Bounded(t)))
			require.NoError(t, rig.Await(t, granted, "the waiter was not served").Free(rig.Bounded(t)))
			for _, m := range cluster.Members {
				m.Restart(t)
				crowd.goesOn(t, 5)
			}
			require.Zero(t, crowd.lost.Load())
			crowd.end(t, cluster.Client(t), "turns "+way.Name, 15)
		})
	}
}

// Each member is killed and comes back a while later. Two of three are enough for everything.
func TestMembers_killedAndRestarted(t *testing.T) {
	t.Parallel()
	cluster := startProcesses(t, etcdproc.Options{})
	client := etcdtest.NewClient(t, cluster.Endpoints())
	for _, way := range rig.Ways {
		t.Run(way.Name, func(t *testing.T) {
			crowd := gather(t, way, cluster.Endpoints(), "turns "+way.Name, 5*time.Second)
			s := rig.NewSession(t, etcdtest.NewClient(t, cluster.Endpoints()), lease.Options{TTL: 5 * time.Second})
			id := s.Status().LeaseID
			var witness rig.Witness
			held := take(t, &witness, way, s, "held "+way.Name)
			for _, m := range cluster.Members {
				crowd.goesOn(t, 5)
				crowd.amid(func() {
					require.NoError(t, m.Kill())
					awaitRenewal(t, s)
				})
				crowd.goesOn(t, 5)
				crowd.amid(func() { require.NoError(t, m.Restart(rig.Bounded(t))) })
			}
			crowd.goesOn(t, 5)
			require.Zero(t, crowd.lost.Load())
			require.NoError(t, held.Err())
			require.Equal(t, id, s.Status().LeaseID)
			require.NoError(t, held.Free(rig.Bounded(t)))
			crowd.end(t, client, "turns "+way.Name, 30)
		})
	}
}

// Without a majority nothing can be renewed. What has time enough goes on when there is one again.
func TestQuorum_regainedInTime(t *testing.T) {
	t.Parallel()
	cluster := startProcesses(t, etcdproc.Options{})
	type hold struct {
		*rig.Hold
		s       *lease.Session
		id      clientv3.LeaseID
		next    <-chan *rig.Hold
		witness rig.Witness
	}
	var holds []*hold
	for _, way := range rig.Ways {
		h := &hold{}
		session := func() *lease.Session {
			return rig.NewSession(t, etcdtest.NewClient(t, cluster.Endpoints()), lease.Options{TTL: 20 * time.Second})
		}
		h.s = session()
		h.id = h.s.Status().LeaseID
		h.Hold = take(t, &h.witness, way, h.s, way.Name)
		h.next = wait(t, &h.witness, way, session(), way.Name)
		rig.AwaitQueue(t, etcdtest.NewClient(t, cluster.Endpoints()), way.Name, 2)
		holds = append(holds, h)
	}
	require.NoError(t, cluster.Members[0].Kill())
	require.NoError(t, cluster.Members[1].Kill())
	for _, h := range holds {
		awaitState(t, h.s, lease.Jeopardy)
		require.NoError(t, h.Err(), "it is still valid")
	}
	require.NoError(t, cluster.Members[0].Restart(rig.Bounded(t)))
	for _, h := range holds {
		awaitState(t, h.s, lease.Held)
		require.Equal(t, h.id, h.s.Status().LeaseID)
		require.Empty(t, h.next)
		require.NoError(t, h.Free(rig.Bounded(t)))
		next := rig.Await(t, h.next, "the waiter was not served")
		require.NoError(t, next.Free(rig.Bounded(t)))
		h.witness.Check(t, 2)
	}
	require.NoError(t, cluster.Members[1].Restart(rig.Bounded(t)))
}

// What has no time left ends by its own clock, nobody is granted anything, and it all begins anew when there is a majority
// again.
func TestQuorum_regainedTooLate(t *testing.T) {
	t.Parallel()
	cluster := startProcesses(t, etcdproc.Options{})
	for _, way := range rig.Ways {
		t.Run(way.Name, func(t *testing.T) {
			var witness rig.Witness
			name := "n " + way.Name
			client := etcdtest.NewClient(t, cluster.Endpoints())
			s := rig.NewSession(t, client, lease.Options{TTL: rig.MinTTL})
			held := take(t, &witness, way, s, name)
			rival := rig.NewSession(t, etcdtest.NewClient(t, cluster.Endpoints()), lease.Options{TTL: rig.MinTTL})
			refused := make(chan error, 1)
			go func() {
				_, err := way.Take(rig.Bounded(t), rival, name)
				refused <- err
			}()
			rig.AwaitQueue(t, client, name, 2)
			require.NoError(t, cluster.Members[0].Kill())
			require.NoError(t, cluster.Members[1].Kill())
			lostFor(t, held, lease.DeadlinePassed)
			err := rig.Await(t, refused, "a waiter whose lease is lost waits on")
			require.ErrorIs(t, err, lease.ErrLost)
			ctx, cancel := context.WithTimeout(rig.Bounded(t), time.Second)
			defer cancel()
			_, err = way.Take(ctx, s, name)
			require.ErrorIs(t, err, context.DeadlineExceeded)

			require.NoError(t, cluster.Members[0].Restart(rig.Bounded(t)))
			require.NoError(t, cluster.Members[1].Restart(rig.Bounded(t)))
			last := held
			for _, s := range []*lease.Session{rival, s} {
				h := take(t, &witness, way, s, name)
				require.Greater(t, h.Token(), last.Token())
				require.NoError(t, h.Free(rig.Bounded(t)))
				last = h
			}
			witness.Check(t, 3)
			rig.AwaitQueue(t, client, name, 0)
		})
	}
}
