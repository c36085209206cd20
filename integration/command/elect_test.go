//go:build unix

package command_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/integration/rig"
)

// One candidate at a time runs its command, the others wait, and observers see the leader.
func TestElect_oneLeads(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	first := start(t, addr, "elect", "job", "--owner", "first", "--", "sh", "-c", `echo "$LEASEFENCE_LOCK $LEASEFENCE_TOKEN $LEASEFENCE_KEY"; cat`)
	first.awaitOutput(t, "job 2 ")
	leader, err := election.Current(rig.Bounded(t), client, "job")
	require.NoError(t, err)
	require.Equal(t, "first", leader.Value)
	require.Equal(t, "job 2 "+leader.Key+"\n", first.stdout.String())
	second := start(t, addr, "elect", "job", "--owner", "second", "--", "sh", "-c", `echo "$LEASEFENCE_TOKEN"`)
	rig.AwaitQueue(t, client, "job", 2)
	resp, err := client.Get(rig.Bounded(t), "job/", clientv3.WithLastCreate()...)
	require.NoError(t, err)
	_, err = client.Revoke(rig.Bounded(t), clientv3.LeaseID(resp.Kvs[0].Lease)) // a candidate that loses its place enters again
	require.NoError(t, err)
	require.Eventually(t, func() bool { return strings.Contains(second.stderr.String(), "campaigning again") }, patience, time.Millisecond)
	rig.AwaitQueue(t, client, "job", 2)
	require.Empty(t, second.stdout.String())
	require.Zero(t, first.end(t))
	require.Zero(t, second.end(t))
	require.Equal(t, "5\n", second.stdout.String()) // 3 was that of its first place, 4 deleted it
	requireNothingLeft(t, client)
}
