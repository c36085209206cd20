//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
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
)

// testPatience bounds what a test waits for; it is far longer than anything takes.
const testPatience = 30 * time.Second

// program is this one, built as a user would.
var program string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "leader-test-*")
		if err != nil {
			panic(err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		program = filepath.Join(dir, "leader")
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

// running is the program, running.
type running struct {
	cmd    *exec.Cmd
	lines  *bufio.Scanner // of its standard output, or for -join of its standard error
	text   strings.Builder
	stderr bytes.Buffer
}

// start starts the program with a temporary folder of its own, which has to be empty at the end of the test.
func start(t *testing.T, args ...string) *running {
	t.Helper()
	temp := t.TempDir()
	t.Cleanup(func() {
		left, err := os.ReadDir(temp)
		require.NoError(t, err)
		require.Empty(t, left, "the program has left something in its temporary folder")
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	r := &running{cmd: exec.CommandContext(ctx, program, args...)}
	r.cmd.Env = append(os.Environ(), "TMPDIR="+temp, "GORACE=atexit_sleep_ms=0")
	var out io.Reader
	var err error
	if args = append(args, ""); args[0] == "-join" {
		out, err = r.cmd.StderrPipe()
	} else {
		r.cmd.Stderr = &r.stderr
		out, err = r.cmd.StdoutPipe()
	}
	require.NoError(t, err)
	r.lines = bufio.NewScanner(out)
	require.NoError(t, r.cmd.Start())
	t.Cleanup(func() { _ = r.cmd.Process.Kill() })
	return r
}

// await reads the output up to a line that matches, and returns what the pattern's groups have found.
func (r *running) await(t *testing.T, pattern string) []string {
	t.Helper()
	return r.awaitSince(t, r.text.Len(), pattern)
}

// awaitSince is await that begins with what was read before, from a place on.
func (r *running) awaitSince(t *testing.T, since int, pattern string) []string {
	t.Helper()
	p := regexp.MustCompile(pattern)
	for read := range strings.SplitSeq(r.text.String()[since:], "\n") {
		if match := p.FindStringSubmatch(read); match != nil {
			return match[1:]
		}
	}
	for r.lines.Scan() {
		r.text.WriteString(r.lines.Text() + "\n")
		if match := p.FindStringSubmatch(r.lines.Text()); match != nil {
			return match[1:]
		}
	}
	require.FailNow(t, "not there: "+pattern, "%s\n%s", &r.text, &r.stderr)
	return nil
}

func (r *running) signal(t *testing.T, sig os.Signal) {
	t.Helper()
	require.NoError(t, r.cmd.Process.Signal(sig))
}

// end reads all output and returns the exit status.
func (r *running) end(t *testing.T) int {
	t.Helper()
	for r.lines.Scan() {
		r.text.WriteString(r.lines.Text() + "\n")
	}
	err := r.cmd.Wait()
	if _, ok := errors.AsType[*exec.ExitError](err); !ok {
		require.NoError(t, err)
	}
	code := r.cmd.ProcessState.ExitCode()
	t.Logf("%v: exit status %d\n%s%s", r.cmd.Args[1:], code, &r.text, &r.stderr)
	require.NotContains(t, r.text.String(), "\x1b", "this is no terminal")
	return code
}

// line is one of the timeline.
type line struct {
	millis    int
	id        string
	pid       int // 0: it is no process of the service
	token     int
	text      string
	remaining string // what comes after it
}

// timelineOf is all lines of the timeline that say what the pattern says.
func timelineOf(t *testing.T, text, pattern string) []line {
	t.Helper()
	p := regexp.MustCompile(`^ *(\d+)\.(\d{3})s  (\w+)(?: (\d+))? +(\d*)  (.*)$`)
	what := regexp.MustCompile(`^(?:` + pattern + `)`)
	var all []line
	for rest := text; rest != ""; {
		var first string
		first, rest, _ = strings.Cut(rest, "\n")
		m := p.FindStringSubmatch(first)
		if m == nil || !what.MatchString(m[6]) {
			continue
		}
		all = append(all, line{number(t, m[1]+m[2]), m[3], number(t, "0"+m[4]), number(t, "0"+m[5]), m[6], rest})
	}
	return all
}

func number(t *testing.T, digits string) int {
	t.Helper()
	n, err := strconv.Atoi(digits)
	require.NoError(t, err)
	return n
}

func requireInOrder(t *testing.T, text string, patterns ...string) {
	t.Helper()
	for _, pattern := range patterns {
		at := regexp.MustCompile(`(?m)` + pattern).FindStringIndex(text)
		require.NotNil(t, at, "not there, or not in its place: %s", pattern)
		text = text[at[1]:]
	}
}

// requireNoneLeft says that every process that was started has ended.
func requireNoneLeft(t *testing.T, text string, n int) {
	t.Helper()
	pids := map[int]bool{}
	for _, l := range timelineOf(t, text, "campaigns") {
		pids[l.pid] = true
	}
	require.Len(t, pids, n)
	for pid := range pids {
		require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH, "process %d is still there", pid)
	}
}

// get asks a process.
func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	return request(t, http.MethodGet, url)
}

func request(t *testing.T, method, url string) (status int, body string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testPatience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, errors.Join(err, resp.Body.Close()))
	return resp.StatusCode, strings.TrimSpace(string(text))
}

// awaitLeader asks a process until it says who leads.
func awaitLeader(t *testing.T, url, answer string) {
	t.Helper()
	var last string
	require.Eventually(t, func() bool {
		_, last = get(t, url+"/leader")
		return last == answer
	}, testPatience, 10*time.Millisecond, "want %s", answer)
}
