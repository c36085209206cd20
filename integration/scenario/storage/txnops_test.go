package storage_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// With few operations a transaction everything works that works with many.
func TestMaxTxnOps_small(t *testing.T) {
	t.Parallel()
	for _, most := range []uint{8, 4} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			t.Parallel()
			srv := etcdtest.Start(t, etcdtest.Options{Configure: func(cfg *embed.Config) { cfg.MaxTxnOps = most }})
			t.Run("shared commits", func(t *testing.T) { shareCommits(t, srv) })
			t.Run("guards", func(t *testing.T) { guardMany(t, srv) })
			t.Run("priorities", func(t *testing.T) { preferPastMany(t, srv) })
			t.Run("close an adopted session", func(t *testing.T) { closeAdopted(t, srv) })
			require.Empty(t, srv.Keys(t, ""))
			require.Empty(t, srv.Leases(t))
		})
	}
}

// many is more than a transaction carries.
const many = 40

// lockMany takes locks at the same time.
func lockMany(t *testing.T, s *lease.Session, name string) []*lease.Lock {
	t.Helper()
	locks := make([]*lease.Lock, many)
	var wg sync.WaitGroup
	for i := range locks {
		wg.Go(func() {
			var err error
			if locks[i], err = s.Lock(rig.Bounded(t), fmt.Sprint(name, "/", i)); err != nil {
				t.Errorf("lock: %v", err)
			}
		})
	}
	wg.Wait()
	require.False(t, t.Failed())
	return locks
}

func shareCommits(t *testing.T, srv *etcdtest.Server) {
	t.Helper()
	s := rig.NewSession(t, srv.Client(t), lease.Options{})
	var wg sync.WaitGroup
	for _, l := range lockMany(t, s, "shared") {
		wg.Go(func() { // behind it, and handed the lock
			if err := s.Do(rig.Bounded(t), l.Name(), doNothing); err != nil {
				t.Errorf("do: %v", err)
			}
		})
		wg.Go(func() {
			if err := l.Unlock(rig.Bounded(t)); err != nil {
				t.Errorf("unlock: %v", err)
			}
		})
	}
	wg.Wait()
	require.Empty(t, srv.Keys(t, "shared"))
	require.NoError(t, s.Close(rig.Bounded(t)))
}

func guardMany(t *testing.T, srv *etcdtest.Server) {
	t.Helper()
	client := srv.Client(t)
	s := rig.NewSession(t, client, lease.Options{})
	locks := lockMany(t, s, "guarded")
	for _, l := range locks {
		_, err := client.Delete(rig.Bounded(t), l.Key())
		require.NoError(t, err)
		rig.Await(t, l.Context().Done(), "the holder was not told that its key was deleted")
		require.ErrorIs(t, l.Err(), lease.ErrLost)
	}
	lockMany(t, s, "guarded")
	require.NoError(t, s.Close(rig.Bounded(t)))
	require.Empty(t, srv.Keys(t, "guarded"))
}

func preferPastMany(t *testing.T, srv *etcdtest.Server) {
	t.Helper()
	client := srv.Client(t)
	s := rig.NewSession(t, client, lease.Options{})
	leader, err := election.Campaign(rig.Bounded(t), s, "role", election.Options{})
	require.NoError(t, err)
	order := make(chan string, many+1)
	var wg sync.WaitGroup
	campaign := func(value string, priority int) {
		wg.Go(func() {
			l, err := election.Campaign(rig.Bounded(t), s, "role", election.Options{Value: value, Priority: priority})
			if err != nil {
				t.Errorf("campaign: %v", err)
				return
			}
			order <- value
			if err := l.Resign(rig.Bounded(t)); err != nil {
				t.Errorf("resign: %v", err)
			}
		})
	}
	for range many {
		campaign("low", 0)
	}
	rig.AwaitQueue(t, client, "role", many+1)
	campaign("high", 1)
	rig.Await(t, leader.Context().Done(), "the leader does not hand over")
	require.ErrorIs(t, leader.Err(), election.ErrHandedOver)
	require.NoError(t, leader.Resign(rig.Bounded(t)))
	require.Equal(t, "high", rig.Await(t, order, "nobody leads"))
	wg.Wait()
	require.NoError(t, s.Close(rig.Bounded(t)))
}

// closeAdopted leaves the lease as it is: every key has to be deleted by itself.
func closeAdopted(t *testing.T, srv *etcdtest.Server) {
	t.Helper()
	client := srv.Client(t)
	granted, err := client.Grant(rig.Bounded(t), 30)
	require.NoError(t, err)
	s, err := lease.Adopt(rig.Bounded(t), client, granted.ID, lease.Options{})
	require.NoError(t, err)
	lockMany(t, s, "adopted")
	require.NoError(t, s.Close(rig.Bounded(t)))
	require.Empty(t, srv.Keys(t, "adopted"))
	_, err = client.Revoke(rig.Bounded(t), granted.ID)
	require.NoError(t, err)
}
