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
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/integration/etcdtest"
)

func elect(t *testing.T, endpoint string, args ...string) *running {
	t.Helper()
	return start(t, endpoint, append([]string{"elect"}, args...)...)
}

func TestElect_exitsAsTheCommandDoes(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	for script, code := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -9 $$": 137} {
		t.Run(script, func(t *testing.T) {
			require.Equal(t, code, elect(t, addr, "job", "--", "sh", "-c", script).end(t))
			requireNothingLeft(t, client)
		})
	}
}

// One runs the command at a time, the others wait, and observers see who.
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

// A leader that loses the leadership, or is asked for it, stops its command, campaigns again, and starts it anew.
func TestElect_leadsAgain(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		end  func(t *testing.T, addr string, client *clientv3.Client)
		says string
	}{
		"asked": {func(t *testing.T, addr string, _ *clientv3.Client) {
			t.Helper()
			require.Zero(t, start(t, addr, "release", "job", "--yes", "--token", "2").end(t))
		}, "asked to release"},
		"deleted": {func(t *testing.T, addr string, _ *clientv3.Client) {
			t.Helper()
			require.Zero(t, start(t, addr, "release", "job", "--mode", "now", "--yes", "--token", "2").end(t))
		}, "campaigning again"},
		"revoked": {func(t *testing.T, _ string, client *clientv3.Client) {
			t.Helper()
			resp, err := client.Get(bounded(t), "job/", clientv3.WithPrefix())
			require.NoError(t, err)
			_, err = client.Revoke(bounded(t), clientv3.LeaseID(resp.Kvs[0].Lease))
			require.NoError(t, err)
		}, "campaigning again"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, client := etcd(t)
			p := elect(t, addr, "job", "--", "sh", "-c", `echo "term $LEASEFENCE_TOKEN."; while :; do sleep 0.01; done`)
			p.awaitOutput(t, "term 2.")
			tt.end(t, addr, client)
			require.Eventually(t, func() bool { return len(p.stdout.String()) > len("term 2.\nterm ") }, patience, time.Millisecond)
			require.Regexp(t, `^term 2\.\nterm [3-9]\.\n$`, p.stdout.String())
			require.Contains(t, p.stderr.String(), tt.says)
			p.signal(t, syscall.SIGTERM)
			require.Equal(t, 143, p.end(t))
			requireNothingLeft(t, client)
		})
	}
}

// A command under which the leadership is lost ends before etcd can let another lead.
func TestElect_endsTheCommandBeforeAnotherLeads(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	addr, _ := etcd(t)
	link := startProxy(t, addr)
	running := filepath.Join(t.TempDir(), "running")
	p := elect(t, link.addr(), "--ttl", ttl.String(), "--grace", "500ms", "job", "--", "sh", "-c", stubborn, running)
	awaitFile(t, running)
	awaitFile(t, running+".child")
	link.cut()
	cut := time.Now() // no renewal was sent later
	require.Eventually(t, func() bool { return strings.Contains(p.stderr.String(), "campaigning again") }, patience, time.Millisecond)
	p.signal(t, syscall.SIGTERM)
	require.Equal(t, 143, p.end(t))
	require.Less(t, lastSign(t, running).Sub(cut), ttl)
}

// Who is told to end does not campaign again, whatever has ended the leadership.
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

// SIGHUP, at which many a service reads its settings again, does not end the candidacy.
func TestElect_reloadedAndThenAsked(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	// Caught here, it is not ignored by those that are started here, also where the tests run under nohup.
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

func TestElect_leavesTheQueueOnASignal(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	s := newSession(t, client, "")
	held, err := s.Lock(bounded(t), "job")
	require.NoError(t, err)
	p := elect(t, addr, "--ttl", "1h", "job", "--", "true")
	awaitKeys(t, client, "job", 2)
	p.signal(t, syscall.SIGINT)
	require.Equal(t, 130, p.end(t))
	require.Equal(t, []string{held.Key()}, keys(t, client, "job/"))
}

func TestElect_refuses(t *testing.T) {
	t.Parallel()
	addr, _ := etcd(t)
	for name, tt := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no command": {[]string{"job"}, 64, "want NAME -- CMD"},
		"two names":  {[]string{"a", "b", "--", "true"}, 64, "2 names, want one"},
		"bad name":   {[]string{"a//b", "--", "true"}, 64, "contains"},
		"not found":  {[]string{"a", "--", "no-such-command-anywhere"}, 127, "not found"},
		"short TTL":  {[]string{"a", "--ttl", "1s", "--", "true"}, 64, "--ttl is 1s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := elect(t, addr, tt.args...)
			require.Equal(t, tt.code, p.end(t))
			require.Contains(t, p.stderr.String(), tt.says)
		})
	}
}

// etcdctl's candidates are in the same election.
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
