//go:build unix

package storage_test

import (
	"context"
	"errors"
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

// write is some history.
func write(t *testing.T, client *clientv3.Client) {
	t.Helper()
	for range 20 {
		_, err := client.Put(rig.Bounded(t), "other", "")
		require.NoError(t, err)
	}
}

// The resource keeps its mark over a restore of etcd, and the tokens that are given out then are lower. They are refused,
// the refusal is told from that of a lock that was lost, and raising the era recovers.
func TestRestore_freshProcessIsToldToRaiseTheEra(t *testing.T) {
	t.Parallel()
	for _, way := range rig.Ways {
		t.Run(way.Name, func(t *testing.T) {
			t.Parallel()
			etcd := etcdtest.StartProcess(t)
			client := etcd.Client(t)
			var resource fence.Guard

			// Before the restore a lock that was lost is a lock that was lost.
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
			fresh := etcd.Client(t) // of a process that knows nothing of what was before
			_, err = fresh.Revoke(rig.Bounded(t), lost.Status().LeaseID)
			require.NoError(t, err, "the lease has come back with its key")
			third := way.MustTake(t, rig.NewSession(t, fresh, lease.Options{}), "n")
			require.Less(t, third.Token(), second.Token())
			stale = resource.Claim("r", third.Token())
			require.ErrorIs(t, stale, fence.ErrStale)
			explained := third.Explain(rig.Bounded(t), stale)
			require.ErrorIs(t, explained, lease.ErrRestored)
			require.ErrorIs(t, explained, stale)
			t.Log(explained)
			require.Equal(t, second.Token(), resource.Marks()["r"])
			require.NoError(t, third.Err(), "whoever looks at etcd alone sees nothing wrong")
			require.NoError(t, third.Free(rig.Bounded(t)))

			recovered := way.MustTake(t, rig.NewSession(t, fresh, lease.Options{Era: 1}), "n")
			require.NoError(t, resource.Claim("r", recovered.Token()))
			require.ErrorIs(t, resource.Check("r", second.Token()), fence.ErrStale)
			// What is refused from then on is refused for the ordinary reason.
			stale = resource.Check("r", third.Token())
			require.Same(t, stale, third.Explain(rig.Bounded(t), stale))
		})
	}
}

// A process that has lived through the restore gives out no more tokens than those that are lower.
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
					rig.Await(t, held.Context().Done(), "the handle did not end")
					cause := context.Cause(held.Context())
					require.ErrorIs(t, cause, lease.ErrLost)
					lost, ok := errors.AsType[*lease.LostError](cause)
					require.True(t, ok)
					if leaseInSnapshot {
						require.Equal(t, lease.ReasonRevisionWentBack, lost.Reason, "%v", cause)
					}
					for range 2 {
						none, err := s.TryLock(rig.Bounded(t), "last")
						require.Nil(t, none)
						require.ErrorIs(t, err, lease.ErrRestored)
						t.Log(err)
					}
					_, err = lease.NewSession(rig.Bounded(t), client, lease.Options{})
					require.ErrorIs(t, err, lease.ErrRestored, "nor does another session")

					again, err := rig.NewSession(t, client, lease.Options{Era: 1}).Lock(rig.Bounded(t), "last")
					require.NoError(t, err)
					require.Greater(t, again.Token(), last.Token())
				})
			}
		})
	}
}

// Run ends where a restore is not to be healed by another campaign.
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
		})
	}()
	token := rig.Await(t, led, "nobody leads")
	snapshot := etcd.Snapshot(t)
	write(t, client)
	_, err := s.Lock(rig.Bounded(t), "other")
	require.NoError(t, err)
	etcd.Restore(t, snapshot, 0)
	require.ErrorIs(t, rig.Await(t, ended, "Run did not end"), lease.ErrRestored)
	require.Positive(t, token)
	require.Empty(t, led)
}

// With --bump-revision and --mark-compacted nobody notices anything.
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
			last, err := s.Lock(rig.Bounded(t), "last") // it is not in the snapshot
			require.NoError(t, err)

			etcd.Restore(t, snapshot, 1_000_000)
			rig.AwaitRenewal(t, s)
			require.NoError(t, held.Err())
			require.NoError(t, resource.Check("r", held.Token()))
			resp, err := client.Txn(rig.Bounded(t)).If(held.IsOwner()).Commit()
			require.NoError(t, err)
			require.True(t, resp.Succeeded, "its key is there")
			require.Empty(t, waiting)
			require.NoError(t, held.Free(rig.Bounded(t)))
			next := rig.Await(t, waiting, "the waiter was not served")
			require.Greater(t, next.Token(), held.Token())
			require.NoError(t, resource.Claim("r", next.Token()))

			// A lock that is in no snapshot is lost, as if an operator had deleted it.
			require.NoError(t, next.Free(rig.Bounded(t)))
			rig.Await(t, last.Context().Done(), "the handle did not end")
			lost, ok := errors.AsType[*lease.LostError](context.Cause(last.Context()))
			require.True(t, ok)
			require.Equal(t, lease.ReasonKeyDeleted, lost.Reason)
			again, err := s.Lock(rig.Bounded(t), "last")
			require.NoError(t, err)
			require.Greater(t, again.Token(), last.Token())
		})
	}
}
