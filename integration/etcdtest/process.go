//go:build unix

package etcdtest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// processEnv is set for the process of a server and holds its processConfig.
	processEnv = "ETCDTEST_PROCESS"
	// readyLine is printed by that process once it serves clients.
	readyLine = "etcdtest: ready"
)

// processConfig is what the process of a server is told.
type processConfig struct {
	Dir        string
	ClientAddr string
	PeerAddr   string
}

// Process is a single etcd server in a process of its own, with fsync on and etcd's default timing. It is not safe for
// concurrent use.
type Process struct {
	config processConfig
	cmd    *exec.Cmd // nil once killed
	stdin  io.Closer
}

// StartProcess runs a server in a process of its own until the test ends. The process is the test's own binary, which
// becomes a server in [Main].
func StartProcess(tb testing.TB) *Process {
	tb.Helper()
	members, err := newMembers(tb.TempDir(), 1, Options{})
	require.NoError(tb, err)
	p := &Process{config: processConfig{
		Dir: members[0].dir, ClientAddr: members[0].clientAddr, PeerAddr: members[0].peerAddr,
	}}
	tb.Cleanup(func() { p.Kill(tb) })
	p.Restart(tb)
	return p
}

// Endpoint returns the address at which the server listens for clients, as host:port. It is the same after a restart.
func (p *Process) Endpoint() string { return p.config.ClientAddr }

// Client returns a client of the server, as [NewClient] does.
func (p *Process) Client(tb testing.TB, opts ...ClientOption) *clientv3.Client {
	tb.Helper()
	return NewClient(tb, []string{p.Endpoint()}, opts...)
}

// Restart starts the server, on the data and at the address it had before, and waits until it serves clients. A running
// one is killed first.
func (p *Process) Restart(tb testing.TB) {
	tb.Helper()
	p.Kill(tb)
	config, err := json.Marshal(p.config)
	require.NoError(tb, err)
	exe, err := os.Executable()
	require.NoError(tb, err)

	// Should Main not be called, the binary runs no test and ends.
	cmd := exec.Command(exe, "-test.run=^$")
	cmd.Env = append(os.Environ(), processEnv+"="+string(config))
	cmd.Stderr = os.Stderr
	// A process group of its own: if the test dies while the server is stopped by a signal, the kernel wakes and ends an
	// orphaned group. A server that runs notices the end of its standard input.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.stdin, err = cmd.StdinPipe()
	require.NoError(tb, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(tb, err)
	require.NoError(tb, cmd.Start())
	p.cmd = cmd

	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.Equal(tb, readyLine, strings.TrimSpace(line), "the server's process: %v; does TestMain call etcdtest.Main?", err)
}

// Kill ends the process at once, as SIGKILL does, and waits until it is gone. What the server has confirmed is on the
// disk. On a killed process it does nothing.
func (p *Process) Kill(tb testing.TB) {
	tb.Helper()
	if p.cmd == nil {
		return
	}
	require.NoError(tb, p.cmd.Process.Kill())
	// Wait reports the signal as an error.
	_ = p.cmd.Wait()
	_ = p.stdin.Close()
	p.cmd = nil
}

// Pause stops the process with SIGSTOP and returns when it has stopped. Its connections stay open and silent.
func (p *Process) Pause(tb testing.TB) {
	tb.Helper()
	require.NoError(tb, p.cmd.Process.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		if err == syscall.EINTR {
			continue
		}
		require.NoError(tb, err)
		require.True(tb, status.Stopped(), "the server's process has ended")
		return
	}
}

// Resume lets a paused process go on.
func (p *Process) Resume(tb testing.TB) {
	tb.Helper()
	require.NoError(tb, p.cmd.Process.Signal(syscall.SIGCONT))
}

// serveProcess runs the server if this process was started by StartProcess, and exits then.
func serveProcess() {
	text, ok := os.LookupEnv(processEnv)
	if !ok {
		return
	}
	// Not to be ended by the Ctrl-C that ends the test: the server would be gone while the test still cleans up.
	signal.Ignore(syscall.SIGINT)
	var config processConfig
	err := json.Unmarshal([]byte(text), &config)
	if err == nil {
		s := &Server{
			name: "m0", dir: config.Dir, opts: Options{Fsync: true}.withDefaults(), alone: true,
			clientAddr: config.ClientAddr, peerAddr: config.PeerAddr,
			initialCluster: "m0=http://" + config.PeerAddr,
		}
		_, missing := os.Stat(filepath.Join(config.Dir, "member")) // etcd's data
		err = startAll([]*Server{s}, missing != nil)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(readyLine)
	// Nothing is written to it: it ends when the test's process does.
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}
