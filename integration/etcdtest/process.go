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
	tb.Cleanup(func() { require.NoError(tb, p.process.Kill()) })
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
