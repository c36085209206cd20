//go:build unix

package command_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/leasefence/leasefence/integration/rig"
)

// What signals, requests for release and losses do to a command, in any order, and the exit code that follows. leasefence
// passes all signals on, and continues a command that is stopped. A command whose lock is taken away is killed without a
// grace: somebody else may have the lock already. A command that was asked to release its lock keeps it while it runs. A
// leader that loses the leadership, or is asked to release it, campaigns again, unless a signal other than SIGHUP came.
func TestCommand_isToldAndEnds(t *testing.T) {
	t.Parallel()
	const (
		loop  = `; echo "started $LEASEFENCE_TOKEN."; while :; do sleep 0.01 || :; done`
		asked = `trap 'echo asked' TERM` + loop
		sleep = `trap 'exit 9' TERM; echo "pid $$"` + loop
	)
	for name, tt := range map[string]struct {
		verb, script string
		steps        string // names of signals, what the command says, and what happens to the lock
		code         int
		out, err     string
	}{
		"INT":  {"lock", `trap 'echo cleaned up; exit 9' INT` + loop, "INT", 9, "cleaned up", ""},
		"TERM": {"lock", `trap 'echo cleaned up; exit 9' TERM` + loop, "TERM", 9, "cleaned up", ""},
		"QUIT": {"lock", `trap 'echo cleaned up; exit 9' QUIT` + loop, "QUIT", 9, "cleaned up", ""},
		"HUP":  {"lock", `trap 'echo cleaned up; exit 9' HUP` + loop, "HUP", 9, "cleaned up", ""},
		"signals that come together": { // while it is stopped, the system keeps them
			"lock", `trap : HUP INT QUIT; trap 'exit 9' TERM` + loop, "STOP HUP INT QUIT TERM CONT", 9, "", "",
		},
		"stopped, and TERM":  {"lock", sleep, "stopped TERM", 9, "", ""}, // as by Ctrl-Z: it would keep the lock forever
		"stopped, and asked": {"lock", sleep, "stopped released", 9, "", "asked to release"},
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
			p.awaitOutput(t, "started 2.")
			for step := range strings.FieldsSeq(tt.steps) {
				switch step {
				case "deleted", "revoked":
					endHold(t, client, "job", step)
				case "released":
					require.Zero(t, start(t, addr, "release", "job", "--yes", "--token", "2").end(t))
				case "again":
					p.awaitOutput(t, "\nstarted ")
				case "asked", "reloaded":
					p.awaitOutput(t, step)
				case "stopped":
					stop(t, p)
				default:
					p.signal(t, unix.SignalNum("SIG"+step))
				}
			}
			require.Equal(t, tt.code, p.end(t))
			require.Contains(t, p.stdout.String(), tt.out)
			require.Contains(t, p.stderr.String(), tt.err)
			requireNothingLeft(t, client)
		})
	}
}

// stop stops the process that has printed its number.
func stop(t *testing.T, p *running) {
	t.Helper()
	pid := regexp.MustCompile(`pid (\d+)`).FindStringSubmatch(p.stdout.String())[1]
	require.NoError(t, exec.CommandContext(rig.Bounded(t), "sh", "-c", "kill -STOP "+pid).Run())
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		return err != nil || strings.Contains(string(stat), ") T ") // other systems do not tell
	}, patience, time.Millisecond)
}
