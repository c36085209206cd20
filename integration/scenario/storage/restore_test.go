//go:build unix

package storage_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// write raises the revision.
func write(t *testing.T, client *clientv3.Client) {
	t.Helper()
	for range 20 {
		_, err := client.Put(rig.Bounded(t), "other", "")
		require.NoError(t, err)
	}
}

// The resource keeps its mark when etcd is restored, and the new tokens are lower. The resource refuses them, Explain
// tells that refusal from the refusal of a lost lock, and raising the era recovers.
func TestRestore_explainSaysToRaiseTheEra(t *testing.T) {
	t.Parallel()
	for _, way := range rig.Ways {
		t.Run(way.Name, func(t *testing.T) {
			t.Parallel()
			etcd := etcdtest.StartProcess(t)
			client := etcd.Client(t)
			var resource fence.Guard

			// Before the restore Explain returns the refusal of a lost lock unchanged.
			lost := rig.NewSession(t, client, lease.Options{})
			first := way.MustTake(t, lost, "n")
			require.NoError(t, resource.Claim("r", first.Token()))
			snapshot := etcd.Snapshot(t)
			write(t, client)
			_, err := client.Revoke(rig.Bounded(t), lost.Status().LeaseID)
			require.NoError(t, err)
			second := way.MustTake(t, rig.NewSession(t, etcd.Client(t), lease.Options{}), "n")
			require.NoError(t, resource.Claim("r", second.Token()))
			stale := resource.Check("r", first.Token())
			require.ErrorIs(t, stale, fence.ErrStale)
			require.Same(t, stale, first.Explain(rig.Bounded(t), stale))

			etcd.Restore(t, snapshot, 0)
			fresh := etcd.Client(t) // of a process that has not seen the revisions before the restore
			_, err = fresh.Revoke(rig.Bounded(t), lost.Status().LeaseID)
			require.NoError(t, err, "the lease has not come back with the snapshot")
			third := way.MustTake(t, rig.NewSession(t, fresh, lease.Options{}), "n")
			require.Less(t, third.Token(), second.Token())
			stale = resource.Claim("r", third.Token())
			require.ErrorIs(t, stale, fence.ErrStale)
			explained := third.Explain(rig.Bounded(t), stale)
			require.ErrorIs(t, explained, lease.ErrRestored)
			require.ErrorIs(t, explained, stale)
			t.Log(explained)
			require.Equal(t, second.Token(), resource.Marks()["r"])
			require.NoError(t, third.Err(), "the handle has ended, though the lock is held")
			require.NoError(t, third.Free(rig.Bounded(t)))

			recovered := way.MustTake(t, rig.NewSession(t, fresh, lease.Options{Era: 1}), "n")
			require.NoError(t, resource.Claim("r", recovered.Token()))
			require.ErrorIs(t, resource.Check("r", second.Token()), fence.ErrStale)
			// From now on the old token is refused because it is stale, not because of the restore.
			stale = resource.Check("r", third.Token())
			require.Same(t, stale, third.Explain(rig.Bounded(t), stale))
		})
	}
}

// A process that lives through the restore grants no lower tokens: its sessions end.
func TestRestore_endsSessionsThatSeeIt(t *testing.T) {
	t.Parallel()
	for name, leaseInSnapshot := range map[string]bool{"lease in the snapshot": true, "lease gone": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, way := range rig.Ways {
				t.Run(way.Name, func(t *testing.T) {
					t.Parallel()
					etcd := etcdtest.StartProcess(t)
					client := etcd.Client(t)
					write(t, client)
					snapshot := etcd.Snapshot(t)
					s := rig.NewSession(t, client, lease.Options{TTL: 15 * time.Second})
					held := way.MustTake(t, s, "n")
					if leaseInSnapshot {
						snapshot = etcd.Snapshot(t)
					}
					write(t, client)
					last, err := s.Lock(rig.Bounded(t), "last")
					require.NoError(t, err)

					etcd.Restore(t, snapshot, 0)
					cause := rig.AwaitEnd(t, held.Context())
					require.ErrorIs(t, cause, lease.ErrLost)
					if leaseInSnapshot {
						rig.RequireLost(t, cause, lease.ReasonRevisionWentBack)
					}
					for range 2 {
						none, err := s.TryLock(rig.Bounded(t), "last")
						require.Nil(t, none)
						require.ErrorIs(t, err, lease.ErrRestored)
						t.Log(err)
					}
					_, err = lease.NewSession(rig.Bounded(t), client, lease.Options{})
					require.ErrorIs(t, err, lease.ErrRestored)

					again, err := rig.NewSession(t, client, lease.Options{Era: 1}).Lock(rig.Bounded(t), "last")
					require.NoError(t, err)
					require.Greater(t, again.Token(), last.Token())
				})
			}
		})
	}
}

// A restore ends Run, even with rejoin: a new campaign would get lower tokens.
func TestRestore_endsRun(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.StartProcess(t)
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
	snapshot := etcd.Snapshot(t)
	write(t, client)
	_, err := s.Lock(rig.Bounded(t), "other")
	require.NoError(t, err)
	etcd.Restore(t, snapshot, 0)
	require.ErrorIs(t, rig.Await(t, ended, "Run did not end"), lease.ErrRestored)
	require.Empty(t, led)
}

// After a restore with --bump-revision and --mark-compacted, locks that are in the snapshot stay held.
func TestRestore_withABumpGoesOn(t *testing.T) {
	t.Parallel()
	for _, way := range rig.Ways {
		t.Run(way.Name, func(t *testing.T) {
			t.Parallel()
			etcd := etcdtest.StartProcess(t)
			client := etcd.Client(t)
			var resource fence.Guard
			s := rig.NewSession(t, client, lease.Options{TTL: 15 * time.Second})
			held := way.MustTake(t, s, "n")
			require.NoError(t, resource.Claim("r", held.Token()))
			waiting := way.Wait(t, rig.NewSession(t, etcd.Client(t), lease.Options{TTL: 15 * time.Second}), "n")
			rig.AwaitQueue(t, client, "n", 2)
			snapshot := etcd.Snapshot(t)
			write(t, client)
			last, err := s.Lock(rig.Bounded(t), "last") // not in the snapshot
			require.NoError(t, err)

			etcd.Restore(t, snapshot, 1_000_000)
			rig.AwaitRenewal(t, s)
			require.NoError(t, held.Err())
			require.NoError(t, resource.Check("r", held.Token()))
			resp, err := client.Txn(rig.Bounded(t)).If(held.IsOwner()).Commit()
			require.NoError(t, err)
			require.True(t, resp.Succeeded, "the holder's key is gone")
			require.Empty(t, waiting)
			require.NoError(t, held.Free(rig.Bounded(t)))
			next := rig.Await(t, waiting, "the waiter was not served")
			require.Greater(t, next.Token(), held.Token())
			require.NoError(t, resource.Claim("r", next.Token()))

			// A lock that is not in the snapshot is lost, as if an operator had deleted its key.
			require.NoError(t, next.Free(rig.Bounded(t)))
			rig.RequireLost(t, rig.AwaitEnd(t, last.Context()), lease.ReasonKeyDeleted)
			again, err := s.Lock(rig.Bounded(t), "last")
			require.NoError(t, err)
			require.Greater(t, again.Token(), last.Token())
		})
	}
}
