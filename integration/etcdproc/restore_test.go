//go:build unix

package etcdproc_test

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdproc"
)

// saveSnapshot saves what a cluster has now, and returns the file.
func saveSnapshot(t *testing.T, client *clientv3.Client) string {
	t.Helper()
	r, err := client.Snapshot(bounded(t))
	require.NoError(t, err)
	f, err := os.Create(filepath.Join(t.TempDir(), "snapshot.db"))
	require.NoError(t, err)
	_, err = io.Copy(f, r)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	require.NoError(t, f.Close())
	return f.Name()
}

// atEach requires that each member has the key "key" with that value, and returns their revision.
func atEach(t *testing.T, c *etcdproc.Cluster, value string) (revision int64) {
	t.Helper()
	for _, m := range c.Members {
		resp, err := dial(t, m.Endpoint()).Get(bounded(t), "key")
		require.NoError(t, err)
		require.Len(t, resp.Kvs, 1)
		require.Equal(t, value, string(resp.Kvs[0].Value))
		revision = resp.Header.Revision
	}
	return revision
}

func TestCluster_restoresAllMembers(t *testing.T) {
	for name, bump := range map[string]uint64{"back": 0, "with a bump": 1000} {
		t.Run(name, func(t *testing.T) {
			c, err := etcdproc.Start(bounded(t), t.TempDir(), 3, etcdproc.Options{})
			require.NoError(t, err)
			defer func() { require.NoError(t, c.Kill()) }()
			client := dial(t, c.Endpoints()...)
			before, err := client.Put(bounded(t), "key", "in the snapshot")
			require.NoError(t, err)
			for _, m := range c.Members { // whichever it is taken from has it
				_, err := dial(t, m.Endpoint()).Get(bounded(t), "key")
				require.NoError(t, err)
			}
			file := saveSnapshot(t, client)
			for range 3 {
				_, err = client.Put(bounded(t), "key", "after it")
				require.NoError(t, err)
			}

			for range 2 { // it can be done again
				require.NoError(t, c.Restore(bounded(t), file, bump))
				require.Equal(t, before.Header.Revision+int64(bump), atEach(t, c, "in the snapshot"))
			}
			// One is enough to be down for the others to tell that they are a cluster.
			require.NoError(t, c.Members[0].Kill())
			requirePut(t, c)
			require.NoError(t, c.Members[0].Restart(bounded(t)))
			atEach(t, c, "value")
		})
	}
}

func TestRestore_leavesNothingRunningWhenItFails(t *testing.T) {
	c, err := etcdproc.Start(bounded(t), t.TempDir(), 3, etcdproc.Options{})
	require.NoError(t, err)
	require.Error(t, c.Members[0].Restore(bounded(t), "file", 0), "it is not alone")
	requirePut(t, c)
	require.Error(t, c.Restore(bounded(t), filepath.Join(t.TempDir(), "none"), 0))
	for _, m := range c.Members {
		<-m.Ended()
	}
}
