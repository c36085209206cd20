//go:build unix

package etcdproc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
)

// Save saves the data of a client's server to a file, like etcdctl snapshot save.
func Save(ctx context.Context, client *clientv3.Client, file string) (err error) {
	in, err := client.Snapshot(ctx)
	if err != nil {
		return fmt.Errorf("etcdproc: save a snapshot: %w", err)
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	out, err := os.Create(filepath.Clean(file))
	if err != nil {
		return fmt.Errorf("etcdproc: save a snapshot: %w", err)
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// Restore kills all members, gives each the data of the same snapshot file, like etcdutl snapshot restore, and starts
// them at the same addresses as a new cluster. With a bump of 0 the revision goes back to that of the snapshot.
// Otherwise the revision is raised by bump and all earlier ones are marked as compacted, as with --bump-revision and
// --mark-compacted.
//
// Restore returns when all members serve clients; on an error nothing is left running.
func (c *Cluster) Restore(ctx context.Context, file string, bump uint64) error {
	if err := c.Kill(); err != nil {
		return err
	}
	for _, p := range c.Members {
		if err := p.restoreData(file, bump); err != nil {
			return err
		}
	}
	return c.launch(ctx)
}

// restoreData gives a server that does not run the data of a snapshot, in a new folder. The old data stays in the old
// one.
func (p *Process) restoreData(file string, bump uint64) error {
	m := p.order.Member
	m.Dir += "-restored"
	err := snapshot.NewV3(newLogger()).Restore(snapshot.RestoreConfig{
		SnapshotPath:        file,
		Name:                m.Name,
		OutputDataDir:       m.Dir,
		PeerURLs:            []string{"http://" + m.PeerAddr},
		InitialCluster:      m.Cluster,
		InitialClusterToken: m.Config().InitialClusterToken,
		RevisionBump:        bump,
		MarkCompacted:       bump > 0,
	})
	if err != nil {
		return fmt.Errorf("etcdproc: restore server %s: %w", m.Name, err)
	}
	p.order.Member = m
	return nil
}
