//go:build unix

package command_test

import (
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/rig"
)

type step func(t *testing.T, p *running, addr string, client *clientv3.Client)

// What signals, requests for release and losses do to a command, in any order, and the exit code that follows. leasefence
// passes all signals on, and continues a command that is stopped. A command whose lock is taken away is killed without a
// grace: somebody else may have the lock already. A command that was asked to release its lock keeps it while it runs. A leader that loses the leadership, or is asked to release it, campaigns again,
// unless a signal other than SIGHUP came.
func TestCommand_isToldAndEnds(t *testing.T) {
	t.Parallel()
	// A signal that is caught here is not ignored in the processes that this test starts, even under nohup.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(caught) })
	const (
		loop  = `; echo "started $LEASEFENCE_TOKEN."; while :; do sleep 0.01 || :; done`
		asked = `trap 'echo asked' TERM` + loop
		sleep = `trap 'exit 9' TERM; echo "pid $$"` + loop
	)
	var ( // steps
		sent = func(all ...syscall.Signal) step {
			return func(t *testing.T, p *running, _ string, _ *clientv3.Client) {
				t.Helper()
				for _, sig := range all {
					p.signal(t, sig)
				}
			}
		}
		says = func(text string) step {
			return func(t *testing.T, p *running, _ string, _ *clientv3.Client) {
				t.Helper()
				p.awaitOutput(t, text)
			}
		}
		ended = func(how string) step {
			return func(t *testing.T, _ *running, _ string, client *clientv3.Client) {
				t.Helper()
				endHold(t, client, "job", how)
			}
		}
		stopped = func(t *testing.T, p *running, _ string, _ *clientv3.Client) {
			t.Helper()
			pid := regexp.MustCompile(`pid (\d+)`).FindStringSubmatch(p.stdout.String())[1]
			require.NoError(t, exec.CommandContext(rig.Bounded(t), "sh", "-c", "kill -STOP "+pid).Run())
			require.Eventually(t, func() bool {
				stat, err := os.ReadFile("/proc/" + pid + "/stat")
				return err != nil || strings.Contains(string(stat), ") T ") // other systems do not tell
			}, patience, time.Millisecond)
		}
		released = func(t *testing.T, _ *running, addr string, _ *clientv3.Client) {
			t.Helper()
			require.Zero(t, start(t, addr, "release", "job", "--yes", "--token", "2").end(t))
		}
		deleted, revoked = ended("deleted"), ended("revoked")
		again, end       = says(".\nstarted "), sent(syscall.SIGTERM)
	)
	for name, tt := range map[string]struct {
		verb, script string
		steps        []step
		code         int
		out, err     string
	}{
		"INT":  {"lock", `trap 'echo cleaned up; exit 9' INT` + loop, []step{sent(syscall.SIGINT)}, 9, "cleaned up", ""},
		"TERM": {"lock", `trap 'echo cleaned up; exit 9' TERM` + loop, []step{end}, 9, "cleaned up", ""},
		"QUIT": {"lock", `trap 'echo cleaned up; exit 9' QUIT` + loop, []step{sent(syscall.SIGQUIT)}, 9, "cleaned up", ""},
		"HUP":  {"lock", `trap 'echo cleaned up; exit 9' HUP` + loop, []step{sent(syscall.SIGHUP)}, 9, "cleaned up", ""},
		"signals that come together": { // while it is stopped, the system keeps them
			"lock", `trap : HUP INT QUIT; trap 'exit 9' TERM` + loop,
			[]step{sent(syscall.SIGSTOP, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGCONT)},
			9, "", "",
		},
		"stopped, and TERM":  {"lock", sleep, []step{stopped, end}, 9, "", ""}, // as by Ctrl-Z: it would keep the lock forever
		"stopped, and asked": {"lock", sleep, []step{stopped, released}, 9, "", "asked to release"},
		"deleted":            {"lock", asked, []step{deleted}, 74, "", "deleted by somebody else"}, // it ignores SIGTERM, and the grace is long
		"revoked":            {"lock", asked, []step{revoked}, 74, "", "lost"},
		"asked, and deleted": {"lock", asked, []step{released, says("asked"), deleted}, 74, "asked", "asked to release"},
		"asked, and revoked": {"lock", asked, []step{released, says("asked"), revoked}, 74, "asked", "asked to release"},
		"elect, asked":       {"elect", `:` + loop, []step{released, again, end}, 143, "", "asked to release"},
		"elect, deleted":     {"elect", `:` + loop, []step{deleted, again, end}, 143, "", "deleted by somebody else; campaigning again"},
		"elect, revoked":     {"elect", `:` + loop, []step{revoked, again, end}, 143, "", "campaigning again"},
		"elect, and reloaded": { // many services reload their settings on SIGHUP
			"elect", `trap 'echo reloaded.' HUP` + loop, []step{sent(syscall.SIGHUP), says("reloaded"), released, again, end}, 143, "reloaded", "",
		},
		"elect, asked, and signalled": { // whatever has ended the leadership
			"elect", `trap 'test -z "$told" || exit 5; told=1; echo asked' TERM` + loop, []step{released, says("asked"), end}, 5, "asked", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, client := etcd(t)
			p := start(t, addr, tt.verb, "--ttl", "1h", "job", "--", "sh", "-c", tt.script)
			p.awaitOutput(t, "started 2.")
			for _, step := range tt.steps {
				step(t, p, addr, client)
			}
			require.Equal(t, tt.code, p.end(t))
			require.Contains(t, p.stdout.String(), tt.out)
			require.Contains(t, p.stderr.String(), tt.err)
			requireNothingLeft(t, client)
		})
	}
}
