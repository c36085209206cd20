//go:build unix

package cluster_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/etcdproc/slowdisk"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// Disks become slow: each write of the cluster's log takes its time. Below the deadline of the leases that costs time and
// nothing else. When that of the leader hangs for longer, the others elect another, and who knows no member but the old one
// loses its lock, and knows before the next one has it.
func TestSlowDisk(t *testing.T) {
	t.Parallel()
	program, err := slowdisk.Build(rig.Bounded(t), t.TempDir())
	require.NoError(t, err)
	cluster := startProcesses(t, etcdproc.Options{Program: program})
	client := etcdtest.NewClient(t, cluster.Endpoints())
	set := func(t *testing.T, d time.Duration) {
		t.Helper()
		for _, m := range cluster.Members {
			require.NoError(t, slowdisk.Set(m.Dir(), d))
		}
	}
	// requireSlow checks that the disks are.
	requireSlow := func(t *testing.T, d time.Duration) {
		t.Helper()
		began := time.Now()
		_, err := client.Put(rig.Bounded(t), "other", "")
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(began), d)
	}
	t.Run("below the deadline", func(t *testing.T) {
		const slow = 200 * time.Millisecond
		all := eachTurned(t, cluster.Endpoints())
		for _, x := range all {
			x.crowd.goesOn(t, 3)
		}
		set(t, slow)
		requireSlow(t, slow)
		for _, x := range all {
			x.crowd.goesOn(t, 3)
			x.renewed(t)
		}
		set(t, 0)
		for _, x := range all {
			require.NoError(t, x.held.Free(rig.Bounded(t)))
			x.crowd.end(t, client, x.name, 6)
		}
	})
	t.Run("above the deadline", func(t *testing.T) {
		leader := leaderOf(t, cluster)
		var all []*turned
		for _, way := range rig.Ways {
			name := "stuck " + way.Name
			x := &turned{way: way, name: name, crowd: gather(t, way, cluster.Endpoints(), name, 5*time.Second)}
			x.s = rig.NewSession(t, etcdtest.NewClient(t, []string{leader.Endpoint()}), lease.Options{TTL: rig.MinTTL})
			x.held = take(t, &x.crowd.Witness, way, x.s, name)
			all = append(all, x)
		}
		require.NoError(t, slowdisk.Set(leader.Dir(), 3*rig.MinTTL)) // from when it next writes
		stop := keepWriting(t, client)                               // a disk that nobody writes to is not slow
		for _, x := range all {
			lostFor(t, x.held, lease.ReasonDeadlinePassed)
			x.crowd.goesOn(t, 5) // with another leader
		}
		stop()
		require.NoError(t, slowdisk.Set(leader.Dir(), 0))
		for _, x := range all {
			again := take(t, &x.crowd.Witness, x.way, x.s, x.name)
			require.Greater(t, again.Token(), x.held.Token())
			require.NoError(t, again.Free(rig.Bounded(t)))
			x.crowd.end(t, client, x.name, 5)
		}
	})
}

// leaderOf is the member that leads the cluster.
func leaderOf(t *testing.T, cluster *etcdproc.Cluster) *etcdproc.Process {
	t.Helper()
	client := etcdtest.NewClient(t, cluster.Endpoints())
	var leader *etcdproc.Process
	rig.Eventually(t, func() bool {
		for _, m := range cluster.Members {
			st, err := client.Status(rig.Bounded(t), m.Endpoint())
			if err == nil && st.Leader == st.Header.MemberId {
				leader = m
			}
		}
		return leader != nil
	}, func() string { return "no leader" })
	return leader
}

// keepWriting writes one thing after the other, until stop is called.
func keepWriting(t *testing.T, client *clientv3.Client) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			// It need not be waited for: the cluster writes it whether somebody does or not.
			short, done := context.WithTimeout(ctx, 100*time.Millisecond)
			_, _ = client.Put(short, "other", "")
			done()
		}
	})
	stop = func() {
		cancel()
		wg.Wait()
	}
	t.Cleanup(stop)
	return stop
}
