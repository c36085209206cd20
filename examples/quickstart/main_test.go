//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/leasefence/leasefence/examples/internal/etcdserver"
)

// program is the quickstart, built as a user would.
var program string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "quickstart-test-*")
		if err != nil {
			panic(err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		program = filepath.Join(dir, "quickstart")
		args := []string{"build", "-o", program}
		if raceDetector() {
			args = append(args, "-race")
		}
		if out, err := exec.Command("go", append(args, ".")...).CombinedOutput(); err != nil {
			panic(string(out))
		}
		return m.Run()
	}())
}

// raceDetector tells whether the test was built with -race.
func raceDetector() bool {
	info, _ := debug.ReadBuildInfo()
	for _, s := range info.Settings {
		if s.Key == "-race" {
			return s.Value == "true"
		}
	}
	return false
}

// command is the program with a temporary folder of its own, which has to be empty at the end of the test.
func command(t *testing.T, endpoints string, args ...string) *exec.Cmd {
	t.Helper()
	temp := t.TempDir()
	t.Cleanup(func() {
		left, err := os.ReadDir(temp)
		require.NoError(t, err)
		require.Empty(t, left, "the program has left something in its temporary folder")
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+temp, "ETCD_ENDPOINTS="+endpoints)
	return cmd
}

// result of a run.
type result struct {
	code           int
	stdout, stderr string
	took           time.Duration
}

func runProgram(t *testing.T, endpoints string, args ...string) result {
	t.Helper()
	cmd := command(t, endpoints, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	began := time.Now()
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); !ok {
		require.NoError(t, err)
	}
	r := result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String(), time.Since(began)}
	t.Logf("%v %v: exit status %d after %v\n%s%s", endpoints, args, r.code, r.took, r.stdout, r.stderr)
	require.NotContains(t, r.stdout, "\x1b", "this is no terminal")
	require.Less(t, r.took, 30*time.Second)
	return r
}

// requireRefused checks a run with fencing on, line by line where it matters.
func requireRefused(t *testing.T, r result) {
	t.Helper()
	require.Equal(t, 0, r.code)
	require.Empty(t, r.stderr)
	a := token(t, r.stdout, `A \d+ +(\d+)  has the lock`)
	b := token(t, r.stdout, `B \d+ +(\d+)  has the lock`)
	require.Less(t, a, b)
	sa, sb := strconv.Itoa(a), strconv.Itoa(b)

	requireInOrder(t, r.stdout,
		`A \d+ +`+sa+`  has the lock`,
		`ledger +`+sa+`  accepts A's #1 \(\+100, balance 100\)`,
		`A \d+ +`+sa+`  read #1; has the lock for \S+ more; goes to write #2 \(\+50, balance 150\)`,
		`main +sends SIGSTOP to A`,
		`etcd +`+sa+`  A's lease has run out`,
		`B \d+ +`+sb+`  has the lock`,
		`ledger +`+sb+`  is claimed`,
		`ledger +`+sb+`  accepts B's #2 \(\+10, balance 110\)`,
		`main +sends SIGCONT to A`,
		`ledger +`+sa+`  REFUSES A's #2 \(\+50, balance 150\): fence: stale token `+sa+` for "ledger": highest seen is `+sb,
		`A \d+ +`+sa+`  is told: fence: stale token `+sa+` for "ledger": highest seen is `+sb,
		`A \d+ +`+sa+`  sees that its lock is lost`,
		`B \d+ +`+sb+`  unlocks`,
		`The ledger at the end\n    #1  \+100  balance 100   by A, token `+sa+`\n    #2   \+10  balance 110   by B, token `+sb+`\n\n`,
		`REFUSED: the stale write \(token `+sa+`\) reached the ledger and was refused: highest seen is `+sb+`\.\n`,
		`The ledger is intact`,
	)
}

func token(t *testing.T, text, pattern string) int {
	t.Helper()
	match := regexp.MustCompile(pattern).FindStringSubmatch(text)
	require.NotNil(t, match, "%s", pattern)
	n, err := strconv.Atoi(match[1])
	require.NoError(t, err)
	return n
}

func requireInOrder(t *testing.T, text string, patterns ...string) {
	t.Helper()
	for _, pattern := range patterns {
		at := regexp.MustCompile(pattern).FindStringIndex(text)
		require.NotNil(t, at, "not there, or not in its place: %s", pattern)
		text = text[at[1]:]
	}
}

func TestQuickstart_refusesTheStaleWrite(t *testing.T) {
	t.Parallel()
	requireRefused(t, runProgram(t, ""))
}

// The same run without the check: what the first one proves is the fence's doing.
func TestQuickstart_corruptsWithoutFence(t *testing.T) {
	t.Parallel()
	r := runProgram(t, "", "-no-fence")
	require.Equal(t, 1, r.code)
	require.Empty(t, r.stderr)
	requireInOrder(t, r.stdout,
		`ledger .*does NOT look at tokens`,
		`ledger +\d+  accepts B's #2 \(\+10, balance 110\)`,
		`ledger +\d+  ACCEPTS A's #2 \(\+50, balance 150\)`,
		`A \d+ +\d+  sees that its lock is lost`,
		`The ledger at the end\n    #1 .* by A, token \d+\n    #2 .* by B, token \d+\n    #2 .* by A, token \d+   <-- stale`,
		`CORRUPTED: the stale write \(token \d+\) was accepted after token \d+\.\n`,
		`A wrote #2 without having seen B's #2`,
	)
	require.NotContains(t, r.stdout, "intact")
}

func TestQuickstart_usesTheGivenCluster(t *testing.T) {
	t.Parallel()
	s, err := etcdserver.Start(t.Context(), "quickstart", zap.NewNop())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop()) })
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint()}, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	_, err = client.Put(t.Context(), "leasefence", "somebody else's")
	require.NoError(t, err)

	r := runProgram(t, " "+s.Endpoint()+", ")
	requireRefused(t, r)
	require.Contains(t, r.stdout, "is at "+s.Endpoint())
	require.NotContains(t, r.stdout, "runs inside this program")

	keys, err := client.Get(t.Context(), "", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Len(t, keys.Kvs, 1, "only what was there before")
	leases, err := client.Leases(t.Context())
	require.NoError(t, err)
	require.Empty(t, leases.Leases)
}

// A step that fails is named, and nothing is claimed.
func TestQuickstart_tellsWhatFailed(t *testing.T) {
	t.Parallel()
	r := runProgram(t, "127.0.0.1:1")
	require.Equal(t, 1, r.code)
	require.Regexp(t, `failed in the step "Two processes start.*connect to etcd at 127\.0\.0\.1:1: no answer in 5s`, r.stderr)
	require.NotContains(t, r.stdout, "REFUSED")
}

// Ctrl-C while A is stopped leaves no process, not even the stopped one, and no folder.
func TestQuickstart_cleansUpWhenInterrupted(t *testing.T) {
	t.Parallel()
	cmd := command(t, "")
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())

	var text strings.Builder
	lines := bufio.NewScanner(stdout)
	for lines.Scan() && !strings.Contains(lines.Text(), "SIGSTOP") {
		text.WriteString(lines.Text() + "\n")
	}
	require.Contains(t, lines.Text(), "SIGSTOP", "after:\n%s", text.String())
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	_, _ = io.Copy(io.Discard, stdout)
	require.Error(t, cmd.Wait())
	require.Equal(t, 1, cmd.ProcessState.ExitCode())
	require.Contains(t, stderr.String(), "interrupt")
	for _, worker := range []string{`A (\d+) `, `B (\d+) `} {
		pid := token(t, text.String(), worker)
		require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH, "worker %d is still there", pid)
	}
}
