//go:build unix

package storetest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// MariaDB takes what it finds in the folder of temporary tables for its own of a run before, and removes it as it starts: a
// statement under way on another server fails then.
func TestServer_leavesTemporaryTablesOfOthers(t *testing.T) {
	for kind, c := range commands {
		t.Run(string(kind), func(t *testing.T) {
			requireInstalled(t, kind)
			shared := t.TempDir()
			for _, dir := range []string{filepath.Dir(shared), shared} {
				require.NoError(t, os.Chmod(dir, 0o777)) //nolint:gosec // As /tmp: the server's user may remove files.
			}
			t.Setenv("TMPDIR", shared)
			table := filepath.Join(shared, "#sql-temptable-1-2-3.MAI")
			require.NoError(t, os.WriteFile(table, nil, 0o600))
			s, err := start(c, false)
			require.NoError(t, err)
			require.NoError(t, s.stop())
			require.FileExists(t, table)
		})
	}
}
