//go:build unix

package etcdtest

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Snapshot saves the server's data to a file, as etcdctl snapshot save does, and returns its name.
func (p *Process) Snapshot(tb testing.TB) string {
	tb.Helper()
	ctx, cancel := startContext()
	defer cancel()
	r, err := p.Client(tb).Snapshot(ctx)
	require.NoError(tb, err)
	f, err := os.Create(filepath.Join(tb.TempDir(), "snapshot.db"))
	require.NoError(tb, err)
	_, err = io.Copy(f, r)
	require.NoError(tb, err)
	require.NoError(tb, r.Close())
	require.NoError(tb, f.Close())
	return f.Name()
}

// Restore kills the server and starts it again, at the address it had before, on the data of a snapshot, and waits until it
// serves clients. A bump of 0 takes revisions back to those of the snapshot; otherwise they go on from there plus bump,
// with everything before compacted.
func (p *Process) Restore(tb testing.TB, snapshot string, bump uint64) {
	tb.Helper()
	ctx, cancel := startContext()
	defer cancel()
	require.NoError(tb, p.process.Restore(ctx, snapshot, bump))
}
