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
	"github.com/leasefence/leasefence/integration/scenario/rig"
	"github.com/leasefence/leasefence/lease"
)

// Disks become slow: each write of the cluster's log takes its time. Below the deadline of the leases that costs time and
// nothing else. When that of the leader hangs for longer, the others elect another, and who knows no member but the old one
// loses its lock, and knows before the next one has it.
func TestSlowDisk(t *testing.T) {
	t.Parallel()
	program, err := slowdisk.Build(rig.Bounded(t), t.TempDir(), withRace)
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
	for _, way := range rig.Ways {
		t.Run("below the deadline/"+way.Name, func(t *testing.T) {
			const slow = 200 * time.Millisecond
			s := rig.NewSession(t, etcdtest.NewClient(t, cluster.Endpoints()), lease.Options{TTL: 5 * time.Second})
			id := s.Status().LeaseID
			var witness rig.Witness
			held := take(t, &witness, way, s, "held "+way.Name)
			crowd := gather(t, way, cluster.Endpoints(), "turns "+way.Name, 10*time.Second)
			crowd.goesOn(t, 3)
			set(t, slow)
			defer set(t, 0)
			requireSlow(t, slow)
			crowd.goesOn(t, 3)
			awaitRenewal(t, s)
			require.NoError(t, held.Err())
			require.Equal(t, id, s.Status().LeaseID)
			require.NoError(t, held.Free(rig.Bounded(t)))
			crowd.end(t, client, "turns "+way.Name, 6)
		})
		t.Run("above the deadline/"+way.Name, func(t *testing.T) {
			name := "stuck " + way.Name
			leader := leaderOf(t, cluster)
			s := rig.NewSession(t, etcdtest.NewClient(t, []string{leader.Endpoint()}), lease.Options{TTL: rig.MinTTL})
			crowd := gather(t, way, cluster.Endpoints(), name, 5*time.Second)
			held := take(t, &crowd.Witness, way, s, name)
			require.NoError(t, slowdisk.Set(leader.Dir(), 3*rig.MinTTL)) // from when it next writes
			stop := keepWriting(t, client)                               // a disk that nobody writes to is not slow
			lostFor(t, held, lease.DeadlinePassed)
			crowd.goesOn(t, 5) // with another leader
			stop()
			require.NoError(t, slowdisk.Set(leader.Dir(), 0))
			again := take(t, &crowd.Witness, way, s, name)
			require.Greater(t, again.Token(), held.Token())
			require.NoError(t, again.Free(rig.Bounded(t)))
			crowd.end(t, client, name, 5)
		})
	}
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
