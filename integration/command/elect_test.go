//go:build unix

package command_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/election"
)

// One candidate at a time runs its command, the others wait, and observers see the leader.
func TestElect_oneLeads(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	first := start(t, addr, "elect", "job", "--owner", "first", "--", "sh", "-c", `echo "$LEASEFENCE_LOCK $LEASEFENCE_TOKEN $LEASEFENCE_KEY"; cat`)
	first.awaitOutput(t, "job 2 ")
	leader, err := election.Current(bounded(t), client, "job")
	require.NoError(t, err)
	require.Equal(t, "first", leader.Value)
	require.Equal(t, "job 2 "+leader.Key+"\n", first.stdout.String())
	second := start(t, addr, "elect", "job", "--owner", "second", "--", "sh", "-c", `echo "$LEASEFENCE_TOKEN"`)
	awaitKeys(t, client, "job", 2)
	require.Empty(t, second.stdout.String())
	require.Zero(t, first.end(t))
	require.Zero(t, second.end(t))
	require.Equal(t, "3\n", second.stdout.String())
	requireNothingLeft(t, client)
}
