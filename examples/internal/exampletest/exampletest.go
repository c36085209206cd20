//go:build unix

// Package exampletest runs examples in tests: it builds the program as a user would, and starts etcd.
package exampletest

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
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/leasefence/leasefence/examples/internal/etcdserver"
)

// Patience bounds every wait of a test. It is far longer than anything takes.
const Patience = 30 * time.Second

var program string

// Main builds the package in the folder, runs the tests and ends the process.
func Main(m *testing.M, folder string) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "example-test-*")
		if err != nil {
			panic(err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		program = filepath.Join(dir, "program")
		args := []string{"build", "-o", program}
		if RaceDetector() {
			args = append(args, "-race")
		}
		if out, err := exec.Command("go", append(args, folder)...).CombinedOutput(); err != nil { //nolint:noctx // no bound: a first build may take minutes
			panic(string(out))
		}
		return m.Run()
	}())
}

// RaceDetector reports whether the test was built with -race.
func RaceDetector() bool {
	info, _ := debug.ReadBuildInfo()
	for _, s := range info.Settings {
		if s.Key == "-race" {
			return s.Value == "true"
		}
	}
	return false
}

// Running is a process of the program.
type Running struct {
	Text   strings.Builder // the standard output, or for -join the standard error, as far as it was read
	Stderr bytes.Buffer    // the standard error, except for -join; complete after End
	Stdin  io.WriteCloser

	cmd   *exec.Cmd
	lines *bufio.Scanner
}

// Start starts the program with a temporary folder of its own, which has to be empty when the test ends. If the first
// argument is "-join", Text has the standard error instead of the standard output.
func Start(t *testing.T, args ...string) *Running {
	t.Helper()
	return StartCommand(t, exec.CommandContext(Bounded(t), program, args...))
}

// StartCommand is Start for any command.
func StartCommand(t *testing.T, cmd *exec.Cmd) *Running {
	t.Helper()
	temp := t.TempDir()
	t.Cleanup(func() {
		left, err := os.ReadDir(temp)
		require.NoError(t, err)
		require.Empty(t, left, "the program has left something in its temporary folder")
	})
	r := &Running{cmd: cmd}
	cmd.Env = append(append(os.Environ(), cmd.Env...), "TMPDIR="+temp, "GORACE=atexit_sleep_ms=0")
	cmd.WaitDelay = Patience / 10 // a process that outlives the program may keep its output open
	var out io.Reader
	var err error
	if len(cmd.Args) > 1 && cmd.Args[1] == "-join" {
		out, err = cmd.StderrPipe()
	} else {
		cmd.Stderr = &r.Stderr
		out, err = cmd.StdoutPipe()
	}
	require.NoError(t, err)
	r.Stdin, err = cmd.StdinPipe()
	require.NoError(t, err)
	r.lines = bufio.NewScanner(out)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return r
}

// Await reads the output up to a line that matches, and returns the text of the pattern's groups.
func (r *Running) Await(t *testing.T, pattern string) []string {
	t.Helper()
	p := regexp.MustCompile(pattern)
	for r.lines.Scan() {
		r.Text.WriteString(r.lines.Text() + "\n")
		if match := p.FindStringSubmatch(r.lines.Text()); match != nil {
			return match[1:]
		}
	}
	require.FailNow(t, "no line matches "+pattern, "%s", &r.Text)
	return nil
}

// Signal sends the program a signal.
func (r *Running) Signal(t *testing.T, sig os.Signal) {
	t.Helper()
	require.NoError(t, r.cmd.Process.Signal(sig))
}

// End closes the program's input, reads all its output and returns the exit status.
func (r *Running) End(t *testing.T) int {
	t.Helper()
	_ = r.Stdin.Close() // fails if the program has ended
	for r.lines.Scan() {
		r.Text.WriteString(r.lines.Text() + "\n")
	}
	err := r.cmd.Wait()
	if _, ok := errors.AsType[*exec.ExitError](err); !ok && !errors.Is(err, exec.ErrWaitDelay) {
		require.NoError(t, err)
	}
	code := r.cmd.ProcessState.ExitCode()
	t.Logf("%v: exit status %d\n%s%s", r.cmd.Args[1:], code, &r.Text, &r.Stderr)
	require.NotContains(t, r.Text.String(), "\x1b", "an escape sequence, though this is no terminal")
	return code
}

// StartEtcd runs a server until the test ends.
func StartEtcd(t *testing.T) (endpoint string, client *clientv3.Client) {
	t.Helper()
	s, err := etcdserver.Start(t.Context(), "test")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop()) })
	client, err = clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint()}, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return s.Endpoint(), client
}

// RequireNothingLeft checks that etcd has no key and no lease.
func RequireNothingLeft(t *testing.T, client *clientv3.Client) {
	t.Helper()
	left, err := client.Get(Bounded(t), "", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Empty(t, left.Kvs)
	leases, err := client.Leases(Bounded(t))
	require.NoError(t, err)
	require.Empty(t, leases.Leases, "a lease was not revoked")
}

// Bounded returns a context that ends when the test takes far too long.
func Bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*Patience)
	t.Cleanup(cancel)
	return ctx
}

// RequireInOrder checks that the text matches the patterns, in this order.
func RequireInOrder(t *testing.T, text string, patterns ...string) {
	t.Helper()
	for _, pattern := range patterns {
		at := regexp.MustCompile(`(?m)` + pattern).FindStringIndex(text)
		require.NotNil(t, at, "missing, or not in this order: %s", pattern)
		text = text[at[1]:]
	}
}

// Number parses a number.
func Number(t *testing.T, digits string) int {
	t.Helper()
	n, err := strconv.Atoi(digits)
	require.NoError(t, err)
	return n
}
