//go:build unix

package cluster_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/etcdproc/slowdisk"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
)

// Disks become slow: each sync of a member's log takes 200 ms. That is well below the leases' deadlines, so requests
// take longer, and no hold is lost.
func TestSlowDisk(t *testing.T) {
	t.Parallel()
	const slow = 200 * time.Millisecond
	program, err := slowdisk.Build(rig.Bounded(t), t.TempDir())
	require.NoError(t, err)
	cluster := startProcesses(t, etcdproc.Options{Program: program})
	client := etcdtest.NewClient(t, cluster.Endpoints())
	set := func(d time.Duration) {
		for _, m := range cluster.Members {
			require.NoError(t, slowdisk.Set(m.Dir(), d))
		}
	}
	all := eachTurned(t, cluster.Endpoints())
	for _, x := range all {
		x.crowd.goesOn(t, 3)
	}
	set(slow)
	began := time.Now()
	_, err = client.Put(rig.Bounded(t), "other", "")
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(began), slow, "the disks are fast")
	for _, x := range all {
		x.crowd.goesOn(t, 3)
		x.renewed(t)
	}
	set(0)
	for _, x := range all {
		require.NoError(t, x.held.Free(rig.Bounded(t)))
		x.crowd.end(t, client, x.name, 6)
	}
}
