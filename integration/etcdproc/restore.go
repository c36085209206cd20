//go:build unix

package etcdproc

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
)

// Restore kills the server and starts it again at the address it had before, on the data of a snapshot file, as
// etcdutl snapshot restore does. A bump of 0 takes revisions back to those of the snapshot. Otherwise the revision
// is raised by bump and all that was before marked as compacted, as with --bump-revision and --mark-compacted.
//
// The server must be the only one of its cluster. Restore returns when it serves clients; on an error nothing is left
// running.
func (p *Process) Restore(ctx context.Context, file string, bump uint64) error {
	if !p.order.Member.Alone {
		return fmt.Errorf("etcdproc: restore server %s: it is one of several, want one that is alone", p.order.Member.Name)
	}
	if err := p.Kill(); err != nil {
		return err
	}
	m := p.order.Member
	m.Dir += "-restored" // the data before stays
	err := snapshot.NewV3(NewLogger()).Restore(snapshot.RestoreConfig{
		SnapshotPath:        file,
		Name:                m.Name,
		OutputDataDir:       m.Dir,
		PeerURLs:            []string{"http://" + m.PeerAddr},
		InitialCluster:      m.Cluster,
		InitialClusterToken: m.Config(NewLogger()).InitialClusterToken,
		RevisionBump:        bump,
		MarkCompacted:       bump > 0,
	})
	if err != nil {
		return fmt.Errorf("etcdproc: restore server %s: %w", m.Name, err)
	}
	p.order.Member = m
	return p.Restart(ctx)
}
