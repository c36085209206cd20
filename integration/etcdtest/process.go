//go:build unix

package etcdtest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdproc"
)

// Process is a single etcd server in a process of its own, with fsync on and etcd's default timing. It is not safe for
// concurrent use.
type Process struct {
	process *etcdproc.Process
}

// StartProcess runs a server in a process of its own until the test ends. The process is the test's own binary, which
// becomes a server in [Main].
func StartProcess(tb testing.TB) *Process {
	tb.Helper()
	ctx, cancel := startContext()
	defer cancel()
	cluster, err := etcdproc.Start(ctx, tb.TempDir(), 1, etcdproc.Options{})
	require.NoError(tb, err)
	p := &Process{process: cluster.Members[0]}
	tb.Cleanup(func() { p.Kill(tb) })
	return p
}

// startContext bounds a start. It is not a child of the test's context, which has ended when cleanups run.
func startContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), readyTimeout)
}

// Endpoint returns the address at which the server listens for clients, as host:port. It is the same after a restart.
func (p *Process) Endpoint() string { return p.process.Endpoint() }

// Client returns a client of the server, as [NewClient] does.
func (p *Process) Client(tb testing.TB, opts ...ClientOption) *clientv3.Client {
	tb.Helper()
	return NewClient(tb, []string{p.Endpoint()}, opts...)
}

// Restart starts the server, on the data and at the address it had before, and waits until it serves clients. A running
// one is killed first.
func (p *Process) Restart(tb testing.TB) {
	tb.Helper()
	ctx, cancel := startContext()
	defer cancel()
	require.NoError(tb, p.process.Restart(ctx))
}

// Kill ends the process at once, as SIGKILL does, and waits until it is gone. What the server has confirmed is on the
// disk. On a killed process it does nothing.
func (p *Process) Kill(tb testing.TB) {
	tb.Helper()
	require.NoError(tb, p.process.Kill())
}

// Pause stops the process with SIGSTOP and returns when it has stopped. Its connections stay open and silent.
func (p *Process) Pause(tb testing.TB) {
	tb.Helper()
	require.NoError(tb, p.process.Pause())
}

// Resume lets a paused process go on.
func (p *Process) Resume(tb testing.TB) {
	tb.Helper()
	require.NoError(tb, p.process.Resume())
}
