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
	"golang.org/x/sys/unix"

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
				require.Regexp(t, `^(time=\S+ level=WARN .*\n)*complaint\n$`, p.stderr.String(), "warnings are of a slow etcd")
				requireNothingLeft(t, client)
			})
		}
	}
}

// stubborn ignores the signals that it can, and has a child that does the same. Both write to a file while they run. They end
// at the latest when the test's folder is gone.
const stubborn = `trap '' TERM INT HUP
(touch "$0.child"; while : >"$0"; do sleep 0.03; done) &
while : >"$0"; do sleep 0.03; done`

// obedient ends on SIGTERM, and says so.
const obedient = `trap 'echo cleaned up; exit 0' TERM; touch "$0.child"; while : >"$0"; do sleep 0.03; done`

// orphan ends on SIGTERM and leaves a child that ignores SIGTERM.
const orphan = `trap 'exit 0' TERM
(trap '' TERM; touch "$0.child"; while : >"$0"; do sleep 0.03; done) &
while : >"$0"; do sleep 0.03; done`

// requireSilence checks that the processes that write to a file have ended, or are about to. It returns when one last did.
func requireSilence(t *testing.T, path string) (last time.Time) {
	t.Helper()
	require.Eventually(t, func() bool {
		before := last
		<-time.After(300 * time.Millisecond) // ten times the pause of the processes
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

			p.stderr.await(t, "no renewal was acknowledged before the deadline")
			require.Less(t, requireSilence(t, running).Sub(cut), ttl)
			code := 74
			if tt.verb == "elect" {
				p.stderr.await(t, "campaigning again")
				p.signal(t, syscall.SIGTERM)
				code = 128 + int(syscall.SIGTERM)
			}
			require.Equal(t, code, p.end(t))
			require.Equal(t, tt.out, p.stdout.String())
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
			requireNothingLeft(t, client, held.Key())
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
	p := lock(t, addr, "job", "--", "sh", "-c", `while : >"$0"; do sleep 0.03; done`, running)
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
				p.stdout.await(t, "started\n")
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
	first.stdout.await(t, "job 2 ")
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
	second.stderr.await(t, "campaigning again")
	rig.AwaitQueue(t, client, "job", 2)
	require.Empty(t, second.stdout.String())
	require.Zero(t, first.end(t))
	require.Zero(t, second.end(t))
	require.Equal(t, "5\n", second.stdout.String()) // 3 was that of its first place, 4 deleted it
	requireNothingLeft(t, client)
}

// Each kind of lock excludes what it has to, and nothing else. cat holds a lock until its input ends.
func TestLock_kinds(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		held  []string // arguments of the holders
		keys  int      // of the holders
		out   []string // arguments of locks that the holders exclude
		still []string // arguments of locks that they do not exclude
	}{
		"alone":   {[]string{"a"}, 1, []string{"a", "a --shared", "a -n 2"}, []string{"b", "a/b"}},
		"readers": {[]string{"a --shared", "a --shared"}, 2, []string{"a"}, []string{"a --shared"}},
		"permits": {[]string{"a -n 2", "a -n 2"}, 2, []string{"a -n 2"}, []string{"b -n 2"}},
		"a set":   {[]string{"--all a b"}, 2, []string{"a", "b", "--all b c", "b --shared"}, []string{"c"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, client := etcd(t)
			var holders []*running
			for _, line := range tt.held {
				holders = append(holders, lock(t, addr, strings.Fields(line+" -- cat")...))
			}
			require.Eventually(t, func() bool { return len(keys(t, client, "")) == tt.keys }, patience, time.Millisecond)
			var refused []*running
			for _, line := range tt.out {
				for _, how := range []string{"--try", "--wait 5s"} {
					// The time includes opening the session; if --wait cut that short, its lease would be left behind.
					refused = append(refused, lock(t, addr, strings.Fields(line+" "+how+" -- echo in")...))
				}
			}
			for _, p := range refused {
				require.Equal(t, 75, p.end(t))
				require.Empty(t, p.stdout.String())
			}
			for _, line := range tt.still {
				require.Zero(t, lock(t, addr, strings.Fields(line+" --try -- true")...).end(t), line)
			}
			for _, p := range holders {
				require.Zero(t, p.end(t))
			}
			requireNothingLeft(t, client)
		})
	}
}

// A command under a nested leasefence has only the token of the inner lock. It has the lock's era. A signal that is ignored,
// as under nohup, stays ignored.
func TestLock_nested(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	p := lock(t, addr, "a", "--shared", "--", "sh", "-c", `trap "" HUP; exec "$@"`, "sh",
		program, "lock", "b", "--era", "1", "--", "sh", "-c", `kill -HUP $$; env | grep -E "^LEASEFENCE_(TOKEN|LOCK|KEY|SHARED)=" | sort`)
	require.Zero(t, p.end(t))
	require.Regexp(t, "^LEASEFENCE_KEY=b/.*\nLEASEFENCE_LOCK=b\nLEASEFENCE_TOKEN=281474976710659\n$", p.stdout.String())
	requireNothingLeft(t, client)
}

// What signals, requests for release and losses do to a command, in any order, and the exit code that follows. leasefence
// passes all signals on, and continues a command that is stopped. A command whose lock is taken away is killed without a
// grace: somebody else may have the lock already. A command that was asked to release its lock keeps it while it runs. A
// leader that loses the leadership, or is asked to release it, campaigns again, unless a signal other than SIGHUP came.
func TestCommand_isToldAndEnds(t *testing.T) {
	t.Parallel()
	const (
		loop  = `; echo "started $LEASEFENCE_TOKEN."; while :; do sleep 0.03 || :; done`
		asked = `trap 'echo asked' TERM` + loop
		// Its child stops it, as Ctrl-Z would.
		stopped = `trap 'exit 9' TERM; echo "started $LEASEFENCE_TOKEN."; (kill -STOP $$; echo stopped) & while :; do sleep 0.03; done`
	)
	for name, tt := range map[string]struct {
		verb, script string
		steps        string // what happens to the lock, names of signals, and what the command says
		code         int
		out, err     string
	}{
		"signals": {
			"lock", `trap 'echo hup' HUP; trap 'echo int' INT; trap 'echo quit' QUIT; trap 'echo term; exit 9' TERM` + loop,
			"HUP hup INT int QUIT quit TERM", 9, "term", "",
		},
		"signals that come together": { // while it is stopped, the system keeps them
			"lock", `trap : HUP INT QUIT; trap 'exit 9' TERM` + loop, "STOP HUP INT QUIT TERM CONT", 9, "", "",
		},
		"stopped, and TERM":  {"lock", stopped, "stopped TERM", 9, "", ""}, // it would keep the lock forever
		"stopped, and asked": {"lock", stopped, "stopped released", 9, "", "asked to release"},
		"deleted":            {"lock", asked, "deleted", 74, "", "deleted by somebody else"}, // it ignores SIGTERM, and the grace is long
		"revoked":            {"lock", asked, "revoked", 74, "", "lost"},
		"asked, and deleted": {"lock", asked, "released asked deleted", 74, "asked", "asked to release"},
		"asked, and revoked": {"lock", asked, "released asked revoked", 74, "asked", "asked to release"},
		"elect, asked":       {"elect", `:` + loop, "released again TERM", 143, "", "asked to release"},
		"elect, deleted":     {"elect", `:` + loop, "deleted again TERM", 143, "", "deleted by somebody else; campaigning again"},
		"elect, revoked":     {"elect", `:` + loop, "revoked again TERM", 143, "", "campaigning again"},
		"elect, and reloaded": { // many services reload their settings on SIGHUP
			"elect", `trap 'echo reloaded' HUP` + loop, "HUP reloaded released again TERM", 143, "reloaded", "",
		},
		"elect, asked, and signalled": { // whatever has ended the leadership
			"elect", `trap 'test -z "$told" || exit 5; told=1; echo asked' TERM` + loop, "released asked TERM", 5, "asked", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, client := etcd(t)
			p := start(t, addr, tt.verb, "--ttl", "1h", "job", "--", "sh", "-c", tt.script)
			p.stdout.await(t, "started 2.")
			for step := range strings.FieldsSeq(tt.steps) {
				switch step {
				case "deleted", "revoked":
					endHold(t, client, "job", step)
				case "released":
					require.Zero(t, start(t, addr, "release", "job", "--yes", "--token", "2").end(t))
				case "again":
					p.stdout.await(t, "\nstarted ")
				default:
					if sig := unix.SignalNum("SIG" + step); sig != 0 {
						p.signal(t, sig)
					} else {
						p.stdout.await(t, step)
					}
				}
			}
			require.Equal(t, tt.code, p.end(t))
			require.Contains(t, p.stdout.String(), tt.out)
			require.Contains(t, p.stderr.String(), tt.err)
			requireNothingLeft(t, client)
		})
	}
}
