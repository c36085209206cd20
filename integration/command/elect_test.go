//go:build unix

package command_test

import (
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
)

func elect(t *testing.T, endpoint string, args ...string) *running {
	t.Helper()
	return start(t, endpoint, append([]string{"elect"}, args...)...)
}

// One candidate at a time runs its command, the others wait, and observers see the leader.
func TestElect_oneLeads(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	first := elect(t, addr, "job", "--owner", "first", "--", "sh", "-c", `echo "$LEASEFENCE_LOCK $LEASEFENCE_TOKEN $LEASEFENCE_KEY"; cat`)
	first.awaitOutput(t, "job 2 ")
	leader, err := election.Current(bounded(t), client, "job")
	require.NoError(t, err)
	require.Equal(t, "first", leader.Value)
	require.Equal(t, "job 2 "+leader.Key+"\n", first.stdout.String())
	second := elect(t, addr, "job", "--owner", "second", "--", "sh", "-c", `echo "$LEASEFENCE_TOKEN"`)
	awaitKeys(t, client, "job", 2)
	require.Empty(t, second.stdout.String())
	require.Zero(t, first.end(t))
	require.Zero(t, second.end(t))
	require.Equal(t, "3\n", second.stdout.String())
	requireNothingLeft(t, client)
}

// A leader that loses the leadership, or is asked to release it, stops its command, campaigns again, and starts the
// command again.
func TestElect_leadsAgain(t *testing.T) {
	t.Parallel()
	for how, says := range map[string]string{"asked": "asked to release", "deleted": "campaigning again", "revoked": "campaigning again"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			addr, client := etcd(t)
			p := elect(t, addr, "job", "--", "sh", "-c", `echo "term $LEASEFENCE_TOKEN."; while :; do sleep 0.01; done`)
			p.awaitOutput(t, "term 2.")
			if how == "asked" {
				require.Zero(t, start(t, addr, "release", "job", "--yes", "--token", "2").end(t))
			} else {
				endHold(t, client, "job", how)
			}
			require.Eventually(t, func() bool { return len(p.stdout.String()) > len("term 2.\nterm ") }, patience, time.Millisecond)
			require.Regexp(t, `^term 2\.\nterm [3-9]\.\n$`, p.stdout.String())
			require.Contains(t, p.stderr.String(), says)
			p.signal(t, syscall.SIGTERM)
			require.Equal(t, 143, p.end(t))
			requireNothingLeft(t, client)
		})
	}
}

// If the leadership is lost because renewals fail, the command ends before etcd can let another candidate lead.
func TestElect_endsTheCommandBeforeAnotherLeads(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	addr, _ := etcd(t)
	for name, script := range map[string]string{"stubborn": stubborn, "orphan": orphan} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			link := faults.NewProxy(t, addr)
			running := filepath.Join(t.TempDir(), "running")
			p := elect(t, link.Addr(), "--ttl", ttl.String(), "--grace", "500ms", name, "--", "sh", "-c", script, running)
			awaitFile(t, running)
			awaitFile(t, running+".child")
			link.Refuse()
			cut := time.Now() // no renewal was sent later
			require.Eventually(t, func() bool { return strings.Contains(p.stderr.String(), "campaigning again") }, patience, time.Millisecond)
			requireSilence(t, running+".child")
			p.signal(t, syscall.SIGTERM)
			require.Equal(t, 143, p.end(t))
			require.Less(t, lastSign(t, running).Sub(cut), ttl)
		})
	}
}

// After a signal elect does not campaign again, whatever has ended the leadership.
func TestElect_askedAndThenSignalled(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	dir := t.TempDir()
	started, asked := filepath.Join(dir, "started"), filepath.Join(dir, "asked")
	p := elect(t, addr, "job", "--", "sh", "-c",
		`trap 'test ! -e "$1" || exit 5; touch "$1"' TERM; touch "$0"; while :; do sleep 0.01; done`, started, asked)
	awaitFile(t, started)
	require.Zero(t, start(t, addr, "release", "job", "--yes", "--token", "2").end(t))
	awaitFile(t, asked)
	p.signal(t, syscall.SIGTERM)
	require.Equal(t, 5, p.end(t))
	requireNothingLeft(t, client)
}

// SIGHUP does not end the candidacy: many services only reload their settings on it.
func TestElect_reloadedAndThenAsked(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	// A signal that is caught here is not ignored in the processes that this test starts, even under nohup.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP)
	defer signal.Stop(caught)
	p := elect(t, addr, "job", "--", "sh", "-c", `trap 'echo reloaded' HUP; echo "term $LEASEFENCE_TOKEN."; while :; do sleep 0.01 || :; done`)
	p.awaitOutput(t, "term 2.")
	p.signal(t, syscall.SIGHUP)
	p.awaitOutput(t, "reloaded")
	require.Zero(t, start(t, addr, "release", "job", "--yes", "--token", "2").end(t))
	p.awaitOutput(t, "reloaded\nterm ")
	p.signal(t, syscall.SIGTERM)
	require.Equal(t, 143, p.end(t))
	requireNothingLeft(t, client)
}

// Candidates of etcdctl take part in the same election.
func TestElect_besideEtcdctl(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	p := elect(t, addr, "job", "--", "cat")
	awaitKeys(t, client, "job", 1)
	other := exec.CommandContext(bounded(t), etcdtest.Etcdctl(t), "--endpoints", addr, "elect", "job", "theirs")
	require.NoError(t, other.Start())
	awaitKeys(t, client, "job", 2)
	require.Zero(t, p.end(t))
	require.Eventually(t, func() bool {
		leader, err := election.Current(bounded(t), client, "job")
		return err == nil && leader.Value == "theirs"
	}, patience, time.Millisecond)
	require.NoError(t, other.Process.Kill())
	_ = other.Wait()
}
