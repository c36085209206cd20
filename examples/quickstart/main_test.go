//go:build unix

package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, "./demo") }

// The quickstart as a user runs it. Its first line comes before Go compiles the demo.
func TestQuickstart_refusesTheStaleWrite(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(exampletest.Bounded(t), "go", "run", ".")
	if exampletest.RaceDetector() {
		cmd.Env = []string{"GOFLAGS=" + os.Getenv("GOFLAGS") + " -race"}
	}
	r := exampletest.StartCommand(t, cmd)
	require.Zero(t, r.End(t))
	require.Empty(t, r.Stderr.String())
	text := r.Text.String()
	require.Regexp(t, `^Go compiles the demo and an etcd server: .*\n +time`, text)
	for line := range strings.Lines(text) {
		require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 100, "%s", line)
	}

	a, b := token(t, text, "A"), token(t, text, "B")
	require.Less(t, exampletest.Number(t, a), exampletest.Number(t, b))
	// Lines of different processes may interleave in any order. This checks the order of the workers' lines, and below
	// that of the main process, which also serves the ledger.
	exampletest.RequireInOrder(t, text,
		` A \d+ +`+a+`  has the lock$`,
		` A \d+ +`+a+`  goes to write; entry: #1 \(\+100, balance 100\); has the lock for: \S+s$`,
		` A \d+ +`+a+`  goes to write; entry: #2 \(\+50, balance 150\); has the lock for: \S+s$`,
		` A \d+ +is stopped$`,
		` B \d+ +`+b+`  has the lock$`,
		` A \d+ +`+a+`  is refused as stale; newest: `+b+`$`,
		` A \d+ +`+a+`  lock is lost: no renewal was acknowledged before the deadline$`,
		` B \d+ +`+b+`  unlocks$`,
		`^The ledger\n    #1  \+100  balance 100   by A, token `+a+`\n    #2   \+10  balance 110   by B, token `+b+
			`\n    #3   \+20  balance 130   by B, token `+b+`\n\n`,
		`^    ok      never two holders at a time`,
		`^    ok      no stale write accepted: 1 sent, all refused$`,
		`^    ok      the ledger is intact`,
		`^The late write was refused`,
	)
	exampletest.RequireInOrder(t, text,
		`ledger +`+a+`  accepts A's #1 \(\+100, balance 100\)$`,
		`main +kill -STOP`,
		`ledger +`+b+`  is claimed: refuses tokens below `+b+` from now on$`,
		`ledger +`+b+`  accepts B's #2 \(\+10, balance 110\)$`,
		`main +kill -CONT`,
		`ledger +`+a+`  REFUSES A's #2 \(\+50, balance 150\): `+a+` is older than `+b+`$`,
	)
	require.NotContains(t, text, "FAILED")
}

func token(t *testing.T, text, id string) string {
	t.Helper()
	match := regexp.MustCompile(id + ` \d+ +(\d+)  has the lock\n`).FindStringSubmatch(text)
	require.NotNil(t, match, "%s never had the lock", id)
	return match[1]
}

// The same run without the check of tokens: the stale write is accepted, so in the first test it was the fence that
// refused it.
func TestQuickstart_corruptsWithoutFence(t *testing.T) {
	t.Parallel()
	r := exampletest.Start(t, "-no-fence")
	require.Equal(t, 1, r.End(t))
	require.Contains(t, r.Stderr.String(), "a check has failed")
	text := r.Text.String()
	exampletest.RequireInOrder(t, text,
		`ledger .*does NOT check tokens`,
		`ledger +\d+  accepts B's #2 \(\+10, balance 110\)`,
		`ledger +\d+  ACCEPTS A's #2 \(\+50, balance 150\)`,
		` A \d+ +\d+  lock is lost`,
		`^    ok      never two holders at a time`,
		`^    FAILED  A's #2 .* was accepted after a larger token$`,
		`^    FAILED  A wrote #2 without having seen B's #2`,
	)
	require.NotContains(t, text, "intact")
	for line := range strings.Lines(text) {
		require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 100, "%s", line)
	}
}

// Ctrl-C while A is stopped leaves no process, not even the stopped one, and no folder.
func TestQuickstart_cleansUpWhenInterrupted(t *testing.T) {
	t.Parallel()
	r := exampletest.Start(t)
	r.Await(t, `is stopped$`)
	r.Signal(t, syscall.SIGINT)
	require.Equal(t, 1, r.End(t))
	require.Regexp(t, `failed in the scene "[^"]+": .*interrupt`, r.Stderr.String())
	require.NotContains(t, r.Text.String(), "The checks")
	for _, id := range []string{"A", "B"} {
		pid := regexp.MustCompile(` ` + id + ` (\d+) `).FindStringSubmatch(r.Text.String())
		require.NotNil(t, pid)
		require.ErrorIs(t, syscall.Kill(exampletest.Number(t, pid[1]), 0), syscall.ESRCH, "%s still exists", id)
	}
}
