//go:build unix

package command_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

func lock(t *testing.T, endpoint string, args ...string) *running {
	t.Helper()
	return start(t, endpoint, append([]string{"lock"}, args...)...)
}

func awaitFile(t *testing.T, path string) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, err := os.Stat(path)
		return err == nil
	}, patience, time.Millisecond)
}

func TestLock_exitsAsTheCommandDoes(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	for script, code := range map[string]int{
		"exit 0":       0,
		"exit 7":       7,
		"kill -9 $$":   137,
		"kill -TERM 0": 143, // to the command's group, which leasefence does not belong to
	} {
		for _, verb := range []string{"lock", "elect"} {
			t.Run(verb+", "+script, func(t *testing.T) {
				p := start(t, addr, verb, "job", "--", "sh", "-c", "echo complaint >&2; "+script)
				require.Equal(t, code, p.end(t))
				require.Equal(t, "complaint\n", p.stderr.String())
				requireNothingLeft(t, client)
			})
		}
	}
}

// stubborn ignores the signals that it can, and has a child that does the same. Both touch a file while they run. They end
// at the latest when the test's folder is gone.
const stubborn = `trap '' TERM INT HUP
(touch "$0.child"; while touch "$0"; do sleep 0.01; done) &
while touch "$0"; do sleep 0.01; done`

// obedient ends on SIGTERM, and says so.
const obedient = `trap 'echo cleaned up; exit 0' TERM; touch "$0.child"; while touch "$0"; do sleep 0.01; done`

// orphan ends on SIGTERM and leaves a child that ignores SIGTERM.
const orphan = `trap 'exit 0' TERM
(trap '' TERM; touch "$0.child"; while touch "$0"; do sleep 0.01; done) &
while touch "$0"; do sleep 0.01; done`

// requireSilence checks that the processes that touch a file have ended, or are about to. It returns when one last did.
func requireSilence(t *testing.T, path string) (last time.Time) {
	t.Helper()
	require.Eventually(t, func() bool {
		before := last
		<-time.After(100 * time.Millisecond)
		stat, err := os.Stat(path)
		if err == nil {
			last = stat.ModTime()
		}
		return last.Equal(before)
	}, patience/10, time.Millisecond, "a process runs on")
	return last
}

// If renewals fail, the command has ended before etcd can give the lock to anybody else. (etcdctl lock lets its command
// run on.) elect campaigns again then.
func TestLock_endsTheCommandBeforeTheLockExpires(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	addr, _ := etcd(t)
	for name, tt := range map[string]struct{ verb, script, out string }{
		"stubborn":            {"lock", stubborn, ""},
		"obedient":            {"lock", obedient, "cleaned up\n"},
		"orphan":              {"lock", orphan, ""},
		"stubborn, and elect": {"elect", stubborn, ""},
		"orphan, and elect":   {"elect", orphan, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			link := faults.NewProxy(t, addr)
			running := filepath.Join(t.TempDir(), "running")
			p := start(t, link.Addr(), tt.verb, "--ttl", ttl.String(), "--grace", "500ms", name, "--", "sh", "-c", tt.script, running)
			awaitFile(t, running)
			awaitFile(t, running+".child")
			link.Refuse()
			cut := time.Now() // no renewal was sent later

			code := 74
			if tt.verb == "elect" {
				require.Eventually(t, func() bool { return strings.Contains(p.stderr.String(), "campaigning again") }, patience, time.Millisecond)
				requireSilence(t, running)
				p.signal(t, syscall.SIGTERM)
				code = 128 + int(syscall.SIGTERM)
			}
			require.Equal(t, code, p.end(t))
			require.Equal(t, tt.out, p.stdout.String())
			require.Contains(t, p.stderr.String(), "no renewal was acknowledged before the deadline")
			require.Less(t, requireSilence(t, running).Sub(cut), ttl)
		})
	}
}

// If leasefence was stopped for longer than the lease lives, somebody else has the lock when it wakes up: the command is
// killed without a grace.
func TestLock_killsTheCommandWhenItWakesUpTooLate(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	running := filepath.Join(t.TempDir(), "running")
	p := lock(t, addr, "--ttl", "5s", "--grace", "1s", "job", "--", "sh", "-c", obedient, running)
	awaitFile(t, running+".child")
	p.signal(t, syscall.SIGSTOP)
	next := rig.MustLock(t, rig.NewSession(t, client, lease.Options{}), "job")
	p.signal(t, syscall.SIGCONT)

	require.Equal(t, 74, p.end(t))
	require.Empty(t, p.stdout.String(), "the command got SIGTERM")
	require.NoError(t, next.Err())
}

func TestLock_leavesTheQueueOnASignal(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	held := rig.MustLock(t, rig.NewSession(t, client, lease.Options{}), "job")
	for verb, sig := range map[string]syscall.Signal{"lock": syscall.SIGTERM, "elect": syscall.SIGINT} {
		t.Run(verb, func(t *testing.T) {
			started := filepath.Join(t.TempDir(), "started")
			p := start(t, addr, verb, "--ttl", "1h", "job", "--", "touch", started)
			rig.AwaitQueue(t, client, "job", 2)
			p.signal(t, sig)
			require.Equal(t, 128+int(sig), p.end(t))
			require.Equal(t, []string{held.Key()}, keys(t, client, "job/"))
			leases, err := client.Leases(rig.Bounded(t))
			require.NoError(t, err)
			require.Len(t, leases.Leases, 1, "the waiter's lease was not revoked")
			require.NoFileExists(t, started)
		})
	}
}

// If leasefence is killed, its command dies too: nobody else would stop it when the lock expires.
func TestLock_takesTheCommandWithItWhenKilled(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		return // other systems cannot do this; the help says so
	}
	addr, _ := etcd(t)
	running := filepath.Join(t.TempDir(), "running")
	p := lock(t, addr, "job", "--", "sh", "-c", `while touch "$0"; do sleep 0.01; done`, running)
	awaitFile(t, running)
	p.signal(t, syscall.SIGKILL)
	p.end(t)
	requireSilence(t, running)
}

// If the command ended under the lock, a later loss of the lock does not change the exit code.
func TestLock_lostAfterTheCommand(t *testing.T) {
	t.Parallel()
	addr, _ := etcd(t)
	for _, verb := range []string{"lock", "elect"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			for ended := false; !ended; {
				link := faults.NewProxy(t, addr)
				p := start(t, link.Addr(), verb, "--ttl", "3s", verb, "--", "sh", "-c",
					`trap 'echo told to end' TERM; echo started; read line; exit 0`)
				p.awaitOutput(t, "started\n")
				link.Refuse()
				code := p.end(t) // closes the input that the command waits for
				// If the machine stood still for seconds, the lock is lost before the command ends: try again.
				ended = !strings.Contains(p.stdout.String(), "told")
				if ended {
					require.Zero(t, code)
					require.Contains(t, p.stderr.String(), "the key will be deleted in the background")
				}
			}
		})
	}
}

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
