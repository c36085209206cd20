//go:build unix

// Package exampletest runs examples in tests. The program is the test's own binary, which runs the example's main.
package exampletest

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const variable = "LEASEFENCE_EXAMPLE"

// Main runs the tests, or in a process that [Run] has started the program.
func Main(m *testing.M, program func()) {
	if os.Getenv(variable) != "" {
		program()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Run runs the program to its end, and returns its exit status and its output. It calls see, if that is not nil, for each
// line. It checks that the program has left no process and no file behind.
func Run(t *testing.T, see func(line string, program *os.Process), args ...string) (status int, text string) {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // far longer than any example takes
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, args...)
	temp := t.TempDir()
	cmd.Env = append(os.Environ(), variable+"=1", "TMPDIR="+temp, "GORACE=atexit_sleep_ms=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = cmd.Stdout
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	var all strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		all.WriteString(lines.Text() + "\n")
		if see != nil {
			see(lines.Text(), cmd.Process)
		}
	}
	_ = cmd.Wait() // the state says how it has ended
	t.Logf("%v: %v\n%s", args, cmd.ProcessState, &all)
	require.ErrorIs(t, syscall.Kill(-cmd.Process.Pid, 0), syscall.ESRCH, "the program has left a process behind")
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	require.Empty(t, left, "the program has left something in its temporary folder")
	return cmd.ProcessState.ExitCode(), all.String()
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
