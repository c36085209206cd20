//go:build unix

package cluster_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// startProcesses runs three members, each in a separate process, until the test ends.
func startProcesses(t *testing.T, opts etcdproc.Options) *etcdproc.Cluster {
	t.Helper()
	c, err := etcdproc.Start(rig.Bounded(t), t.TempDir(), 3, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Kill()) })
	return c
}

// turned is a name on which a crowd takes turns, and a hold of another name.
type turned struct {
	name  string
	crowd *crowd
	s     *lease.Session // of the hold
	id    clientv3.LeaseID
	held  *rig.Hold
}

// eachTurned starts a crowd and takes another name, for each way to hold a name.
func eachTurned(t *testing.T, endpoints []string) (all []*turned) {
	t.Helper()
	for _, way := range rig.Ways {
		name := "turns " + way.Name
		x := &turned{name: name, crowd: gather(t, way, endpoints, name, 5*time.Second)}
		x.s = rig.NewSession(t, etcdtest.NewClient(t, endpoints), lease.Options{TTL: 5 * time.Second})
		x.id = x.s.Status().LeaseID
		x.held = way.MustTake(t, x.s, "held "+way.Name)
		all = append(all, x)
	}
	return all
}

// renewed checks that the hold is live and that its lease is the same and renewed.
func (x *turned) renewed(t *testing.T) {
	t.Helper()
	rig.AwaitRenewal(t, x.s)
	require.NoError(t, x.held.Err())
	require.Equal(t, x.id, x.s.Status().LeaseID)
}

// hold is a name that is held, and that another session waits for.
type hold struct {
	*rig.Hold
	s       *lease.Session
	id      clientv3.LeaseID
	next    <-chan *rig.Hold
	witness rig.Witness
}

// holdAndWait takes a name and starts a waiter for it, for each way to hold a name.
func holdAndWait(t *testing.T, endpoints []string, ttl time.Duration) (holds []*hold) {
	t.Helper()
	for _, way := range rig.Ways {
		h := &hold{s: rig.NewSession(t, etcdtest.NewClient(t, endpoints), lease.Options{TTL: ttl})}
		h.id = h.s.Status().LeaseID
		h.Hold = take(t, &h.witness, way, h.s, way.Name)
		waiter := etcdtest.NewClient(t, endpoints)
		h.next = way.Wait(t, rig.NewSession(t, waiter, lease.Options{TTL: 20 * time.Second}), way.Name, &h.witness)
		rig.AwaitQueue(t, waiter, way.Name, 2)
		holds = append(holds, h)
	}
	return holds
}

// handOver checks that the hold's lease is the same, and hands the name over to the waiter.
func (h *hold) handOver(t *testing.T) {
	t.Helper()
	require.Equal(t, h.id, h.s.Status().LeaseID)
	require.Empty(t, h.next)
	require.NoError(t, h.Free(rig.Bounded(t)))
	require.NoError(t, rig.Await(t, h.next, "the waiter was not served").Free(rig.Bounded(t)))
	h.witness.Check(t, 2)
}

// All members are restarted one after the other, as for an upgrade. No hold is lost.
func TestMembers_restartedOneByOne(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	holds := holdAndWait(t, cluster.Endpoints(), 5*time.Second)
	for _, m := range cluster.Members {
		m.Restart(t)
		for _, h := range holds {
			rig.AwaitRenewal(t, h.s)
			require.NoError(t, h.Err())
		}
	}
	for _, h := range holds {
		h.handOver(t)
	}
}

// Each member is killed and restarted later. Two of three members are enough: turns go on and no hold is lost.
func TestMembers_killedAndRestarted(t *testing.T) {
	t.Parallel()
	cluster := startProcesses(t, etcdproc.Options{})
	client := etcdtest.NewClient(t, cluster.Endpoints())
	all := eachTurned(t, cluster.Endpoints())
	goOn := func() {
		for _, x := range all {
			x.crowd.goesOn(t, 5)
		}
	}
	amid := func(do func()) { all[0].crowd.amid(func() { all[1].crowd.amid(do) }) }
	for _, m := range cluster.Members {
		goOn()
		amid(func() {
			require.NoError(t, m.Kill())
			for _, x := range all {
				x.renewed(t)
			}
		})
		goOn()
		amid(func() { require.NoError(t, m.Restart(rig.Bounded(t))) })
	}
	goOn()
	for _, x := range all {
		require.Zero(t, x.crowd.lost.Load())
		require.NoError(t, x.held.Err())
		require.Equal(t, x.id, x.s.Status().LeaseID)
		require.NoError(t, x.held.Free(rig.Bounded(t)))
		x.crowd.end(t, client, x.name, 30)
	}
}

// Without a majority no lease is renewed. If the majority returns before the deadline, the holds go on.
func TestQuorum_regainedInTime(t *testing.T) {
	t.Parallel()
	cluster := startProcesses(t, etcdproc.Options{})
	holds := holdAndWait(t, cluster.Endpoints(), 20*time.Second)
	require.NoError(t, cluster.Members[0].Kill())
	require.NoError(t, cluster.Members[1].Kill())
	for _, h := range holds {
		rig.AwaitState(t, h.s, lease.StateJeopardy)
		require.NoError(t, h.Err(), "the hold is not valid in jeopardy")
	}
	require.NoError(t, cluster.Members[0].Restart(rig.Bounded(t)))
	for _, h := range holds {
		rig.AwaitState(t, h.s, lease.StateHeld)
		h.handOver(t)
	}
	require.NoError(t, cluster.Members[1].Restart(rig.Bounded(t)))
}
