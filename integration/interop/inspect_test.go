package interop_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// Watch, Inspect and List show the same holders and waiters, for our locks and for etcd's own. Release gets our lock by
// asking its holder, and etcd's own lock when its lease has expired, or at once.
func TestInspect_showsEtcdsOwnLocks(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client, ctx := srv.Client(t), t.Context()
	changes := make(chan lease.Queue, 100)
	watch, leave := context.WithCancel(ctx)
	watched := make(chan error, 1)
	go func() {
		for q, err := range lease.Watch(watch, client, "job") {
			if err != nil {
				watched <- err
				return
			}
			changes <- q
		}
		watched <- nil
	}()
	// agree waits until Watch shows this many holders and waiters, and compares Inspect and List with that.
	agree := func(holders, waiters int) (q lease.Queue) {
		t.Helper()
		for {
			select {
			case q = <-changes:
			case err := <-watched:
				require.NoError(t, err)
			}
			if len(q.Holders) == holders && len(q.Waiters) == waiters {
				break
			}
		}
		now, err := lease.Inspect(ctx, client, "job")
		require.NoError(t, err)
		for _, list := range [...][]lease.Contender{now.Holders, now.Waiters} {
			for i := range list {
				list[i].TTL = 0
			}
		}
		require.Equal(t, q, now)
		names := 0
		for listed, err := range lease.List(ctx, client, "jo") {
			require.NoError(t, err)
			names++
			for _, list := range [...][]lease.Contender{now.Holders, now.Waiters} {
				for i := range list {
					list[i].Owner = ""
				}
			}
			require.Equal(t, now, listed)
		}
		require.Equal(t, min(1, holders+waiters), names, "List shows a name with holders or waiters")
		return q
	}
	agree(0, 0)

	theirs, err := concurrency.NewSession(client, concurrency.WithTTL(10))
	require.NoError(t, err)
	mutex := concurrency.NewMutex(theirs, "job")
	require.NoError(t, mutex.Lock(ctx))
	q := agree(1, 0)
	require.Equal(t, mutex.Key(), q.Holders[0].Key)
	require.Equal(t, theirs.Lease(), q.Holders[0].Lease)
	require.ErrorContains(t, lease.Release(ctx, client, "job", lease.ReleaseOptions{}), "of etcd's own packages")

	ours := rig.NewSession(t, srv.Client(t), lease.Options{Owner: "ours"})
	begun, ended := make(chan fence.Token, 1), make(chan error, 1)
	go func() {
		ended <- ours.Do(ctx, "job", func(ctx context.Context, token fence.Token) error {
			begun <- token
			<-ctx.Done()
			return context.Cause(ctx)
		})
	}()
	require.Equal(t, "ours", agree(1, 1).Waiters[0].Owner)
	theirs.Orphan()
	require.NoError(t, lease.Release(ctx, client, "job", lease.ReleaseOptions{Mode: lease.ReleaseWait}))
	require.Equal(t, (<-begun).Revision(), agree(1, 0).Holders[0].Revision)

	last, err := concurrency.NewSession(client)
	require.NoError(t, err)
	second := concurrency.NewMutex(last, "job")
	locked := make(chan error, 1)
	go func() { locked <- second.Lock(ctx) }()
	agree(1, 1)
	require.NoError(t, lease.Release(ctx, client, "job", lease.ReleaseOptions{}))
	require.ErrorIs(t, <-ended, lease.ErrAskedToRelease)
	require.NoError(t, <-locked)
	q = agree(1, 0)
	require.NoError(t, lease.Release(ctx, client, "job", lease.ReleaseOptions{Mode: lease.ReleaseNow, Revision: q.Holders[0].Revision}))
	agree(0, 0)
	left, err := client.Leases(ctx)
	require.NoError(t, err)
	require.Contains(t, left.Leases, clientv3.LeaseStatus{ID: last.Lease()})
	require.NoError(t, last.Close())
	leave()
	require.NoError(t, <-watched)
}
