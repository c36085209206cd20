package storage_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

const quota = 8 << 20

func startWithQuota(t *testing.T) *etcdtest.Server {
	t.Helper()
	return etcdtest.Start(t, etcdtest.Options{Configure: func(cfg *embed.Config) { cfg.QuotaBackendBytes = quota }})
}

// fill writes until the server has raised the alarm.
func fill(t *testing.T, client *clientv3.Client) {
	t.Helper()
	big := string(make([]byte, 1<<20))
	for i := 0; ; i++ {
		_, err := client.Put(rig.Bounded(t), fmt.Sprint("big", i), big)
		if errors.Is(err, rpctypes.ErrNoSpace) {
			break
		}
		require.NoError(t, err)
	}
	alarms, err := client.AlarmList(rig.Bounded(t))
	require.NoError(t, err)
	require.NotEmpty(t, alarms.Alarms)
}

// makeRoom frees space and clears the alarm, as an operator would.
func makeRoom(t *testing.T, srv *etcdtest.Server, client *clientv3.Client) {
	t.Helper()
	_, err := client.Delete(rig.Bounded(t), "big", clientv3.WithPrefix())
	require.NoError(t, err)
	srv.Compact(t)
	_, err = client.Defragment(rig.Bounded(t), srv.Endpoint())
	require.NoError(t, err)
	_, err = client.AlarmDisarm(rig.Bounded(t), &clientv3.AlarmMember{})
	require.NoError(t, err)
}

// When etcd has no space left, locks that are held stay held and can be unlocked. New acquisitions wait, and when their
// context ends, the error names the reason. When there is space again, they succeed.
func TestNoSpace_heldLocksGoOn(t *testing.T) {
	t.Parallel()
	srv := startWithQuota(t)
	client := srv.Client(t)
	s := rig.NewSession(t, client, lease.Options{TTL: 3 * time.Second})
	id := s.Status().LeaseID
	held, err := s.Lock(rig.Bounded(t), "held")
	require.NoError(t, err)
	leader, err := election.Campaign(rig.Bounded(t), s, "role", election.Options{Value: "a"})
	require.NoError(t, err)
	other := rig.NewSession(t, srv.Client(t), lease.Options{TTL: 3 * time.Second})
	waiting := rig.Ways[0].Wait(t, other, "held") // in etcd's queue, with a key
	rig.AwaitQueue(t, client, "held", 2)
	fill(t, client)

	rig.AwaitRenewal(t, s)
	require.Equal(t, id, s.Status().LeaseID)
	require.NoError(t, held.Err())
	require.NoError(t, leader.Err())

	for name, take := range map[string]func(context.Context) error{
		"Lock":     func(ctx context.Context) error { return second(s.Lock(ctx, "new")) },
		"TryLock":  func(ctx context.Context) error { return second(s.TryLock(ctx, "new")) },
		"Campaign": func(ctx context.Context) error { return second(election.Campaign(ctx, s, "new", election.Options{})) },
		"NewSession": func(ctx context.Context) error {
			return second(lease.NewSession(ctx, client, lease.Options{}))
		},
		"Proclaim": func(ctx context.Context) error { return leader.Proclaim(ctx, "b") },
	} {
		ctx, cancel := context.WithTimeout(rig.Bounded(t), time.Second)
		err := take(ctx)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded, name)
		require.ErrorContains(t, err, "database space exceeded", name)
		require.NotErrorIs(t, err, lease.ErrLost, name)
	}
	require.NoError(t, leader.Err(), "the failed Proclaim has ended the leadership")
	require.Empty(t, srv.Keys(t, "new/"))
	led := make(chan error, 1)
	go func() {
		led <- election.Run(rig.Bounded(t), s, "later", election.Options{}, func(context.Context, fence.Token) error { return errDone })
	}()

	require.NoError(t, held.Unlock(rig.Bounded(t)))
	l := rig.Await(t, waiting, "the waiter, which has its key, was not served")
	require.Equal(t, []string{l.Key()}, srv.Keys(t, "held/"))
	require.NoError(t, leader.Resign(rig.Bounded(t)))
	require.NoError(t, other.Close(rig.Bounded(t)))
	require.Empty(t, srv.Keys(t, "held/"))
	require.NotContains(t, srv.Leases(t), other.Status().LeaseID)

	makeRoom(t, srv, client)
	require.ErrorIs(t, rig.Await(t, led, "Run does not lead"), errDone)
	again, err := s.Lock(rig.Bounded(t), "new")
	require.NoError(t, err)
	require.Equal(t, id, s.Status().LeaseID, "the session has lost its lease")
	require.NoError(t, again.Unlock(rig.Bounded(t)))
	rig.CloseAll(t, client, []*lease.Session{s}, "held", "new", "role", "later")
}

var errDone = errors.New("done")

// Transactions that only delete succeed, even if they share a commit with transactions that are refused, and even if
// the next waiter of the session waits to be handed the lock.
func TestNoSpace_unlocksAreNotRefusedWithLocks(t *testing.T) {
	t.Parallel()
	const n = 50
	srv := startWithQuota(t)
	client := srv.Client(t)
	s := rig.NewSession(t, client, lease.Options{})
	held := make([]*lease.Lock, n)
	for i := range held {
		var err error
		held[i], err = s.Lock(rig.Bounded(t), fmt.Sprint("held", i))
		require.NoError(t, err)
	}
	fill(t, client)
	var waiting, unlocking sync.WaitGroup
	take := func(name string) {
		waiting.Go(func() {
			if err := s.Do(rig.Bounded(t), name, doNothing); err != nil {
				t.Errorf("do: %v", err)
			}
		})
	}
	for i, l := range held {
		take(l.Name()) // behind the holder, in the process
		take(fmt.Sprint("new", i))
		unlocking.Go(func() {
			if err := l.Unlock(rig.Bounded(t)); err != nil {
				t.Errorf("unlock: %v", err)
			}
		})
	}
	unlocking.Wait()
	require.Empty(t, srv.Keys(t, "held"))
	require.Empty(t, srv.Keys(t, "new"))
	makeRoom(t, srv, client)
	waiting.Wait()
	require.Empty(t, srv.Keys(t, "held"))
	require.Empty(t, srv.Keys(t, "new"))
	rig.CloseAll(t, client, []*lease.Session{s})
}
