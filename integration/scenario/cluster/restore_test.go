//go:build unix

package cluster_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// save saves the data of a client's server to a file.
func save(t *testing.T, client *clientv3.Client) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "snapshot.db")
	require.NoError(t, etcdproc.Save(rig.Bounded(t), client, file))
	return file
}

// write raises the revision.
func write(t *testing.T, client *clientv3.Client) {
	t.Helper()
	for range 20 {
		_, err := client.Put(rig.Bounded(t), "other", "")
		require.NoError(t, err)
	}
}

// A restore ends Run, even with rejoin: a new campaign would get lower tokens.
func TestRestore_endsRun(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.StartCluster(t, 1, etcdtest.Options{})
	client := etcd.Client(t)
	write(t, client)
	s := rig.NewSession(t, client, lease.Options{TTL: 15 * time.Second})
	led := make(chan fence.Token, 10)
	ended := make(chan error, 1)
	go func() {
		ended <- election.Run(rig.Bounded(t), s, "n", election.Options{}, func(ctx context.Context, token fence.Token) error {
			led <- token
			<-ctx.Done()
			return nil
		}, election.WithRejoin())
	}()
	rig.Await(t, led, "Run does not lead")
	snapshot := save(t, client)
	write(t, client)
	_, err := s.Lock(rig.Bounded(t), "other")
	require.NoError(t, err)
	require.NoError(t, etcd.Restore(rig.Bounded(t), snapshot, 0))
	require.ErrorIs(t, rig.Await(t, ended, "Run did not end"), lease.ErrRestored)
	require.Empty(t, led)
}

// After a restore with --bump-revision and --mark-compacted, locks that are in the snapshot stay held.
func TestRestore_withABumpGoesOn(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.StartCluster(t, 1, etcdtest.Options{})
	client := etcd.Client(t)
	s := rig.NewSession(t, client, lease.Options{TTL: 15 * time.Second})
	held := rig.MustLock(t, s, "n")
	waiting := rig.Wait(t, rig.NewSession(t, etcd.Client(t), lease.Options{TTL: 15 * time.Second}), "n")
	rig.AwaitQueue(t, client, "n", 2)
	snapshot := save(t, client)
	write(t, client)
	last, err := s.Lock(rig.Bounded(t), "last") // not in the snapshot
	require.NoError(t, err)

	require.NoError(t, etcd.Restore(rig.Bounded(t), snapshot, 1_000_000))
	rig.AwaitRenewal(t, s)
	require.NoError(t, held.Err())
	resp, err := client.Txn(rig.Bounded(t)).If(held.IsOwner()).Commit()
	require.NoError(t, err)
	require.True(t, resp.Succeeded, "the holder's key is gone")
	require.Empty(t, waiting)
	require.NoError(t, held.Unlock(rig.Bounded(t)))
	next := rig.Await(t, waiting, "the waiter was not served")
	require.Greater(t, next.Token(), held.Token())

	// A lock that is not in the snapshot is lost, as if an operator had deleted its key.
	require.NoError(t, next.Unlock(rig.Bounded(t)))
	rig.RequireLost(t, rig.AwaitEnd(t, last.Context()), lease.ReasonKeyDeleted)
	again, err := s.Lock(rig.Bounded(t), "last")
	require.NoError(t, err)
	require.Greater(t, again.Token(), last.Token())
}
