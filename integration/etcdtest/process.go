//go:build unix

package etcdtest

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdproc"
)

// Process is a single etcd server in a separate process, with fsync on and etcd's default timing. It is not safe for
// concurrent use.
type Process struct{ *etcdproc.Process }

// StartProcess runs a server in a separate process until the test ends. The process runs the test's binary, where
// [Main] starts the server.
func StartProcess(tb testing.TB) *Process {
	tb.Helper()
	ctx, cancel := startContext()
	defer cancel()
	cluster, err := etcdproc.Start(ctx, tb.TempDir(), 1, etcdproc.Options{})
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, cluster.Kill()) })
	return &Process{cluster.Members[0]}
}

// startContext bounds a start. It is not a child of the test's context, which ends before cleanups run.
func startContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), readyTimeout)
}

// Client returns a client of the server, as [NewClient] does.
func (p *Process) Client(tb testing.TB, opts ...ClientOption) *clientv3.Client {
	tb.Helper()
	return NewClient(tb, []string{p.Endpoint()}, opts...)
}

// Snapshot saves the server's data to a file and returns the file's path.
func (p *Process) Snapshot(tb testing.TB) string {
	tb.Helper()
	ctx, cancel := startContext()
	defer cancel()
	file := filepath.Join(tb.TempDir(), "snapshot.db")
	require.NoError(tb, etcdproc.Save(ctx, p.Client(tb), file))
	return file
}

// Restore calls [etcdproc.Process.Restore] and fails the test on an error.
func (p *Process) Restore(tb testing.TB, snapshot string, bump uint64) {
	tb.Helper()
	ctx, cancel := startContext()
	defer cancel()
	require.NoError(tb, p.Process.Restore(ctx, snapshot, bump))
}
