// Package cluster_test has scenarios of the members of a cluster: they are killed, stalled, slow or isolated, or
// restored from a snapshot.
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
	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/lease"
)

// hold is a lock that another session waits for.
type hold struct {
	*lease.Lock
	s    *lease.Session
	id   clientv3.LeaseID
	next <-chan *lease.Lock
}

// holdAndWait takes two locks and starts a waiter for each.
func holdAndWait(t *testing.T, cluster *etcdtest.Cluster, ttl time.Duration) (holds []*hold) {
	t.Helper()
	for _, name := range []string{"one", "two"} {
		h := &hold{s: rig.NewSession(t, cluster.Client(t), lease.Options{TTL: ttl})}
		h.id = h.s.Status().LeaseID
		h.Lock = rig.MustLock(t, h.s, name)
		waiter := cluster.Client(t)
		h.next = rig.Wait(t, rig.NewSession(t, waiter, lease.Options{TTL: time.Minute}), name)
		rig.AwaitQueue(t, waiter, name, 2)
		holds = append(holds, h)
	}
	return holds
}

// goOn waits until the leases have been renewed and each session has taken and released another lock.
func goOn(t *testing.T, holds []*hold) {
	t.Helper()
	for _, h := range holds {
		rig.AwaitRenewal(t, h.s)
		require.NoError(t, rig.MustLock(t, h.s, "other").Unlock(rig.Bounded(t)))
		require.NoError(t, h.Err())
	}
}

// put writes a key, again if a change of leader fails the request, and returns when it sent the last one.
func put(t *testing.T, client *clientv3.Client, key, value string) (sent time.Time) {
	t.Helper()
	rig.Eventually(t, func() bool {
		sent = time.Now()
		_, err := client.Put(rig.Bounded(t), key, value)
		return err == nil
	}, func() string { return "the key is not written" })
	return sent
}

// A fault of the cluster that ends before the deadline costs no session its lease. While a majority can write, leases
// are renewed and names change hands. After the fault each name is handed over to its waiter.
func TestSession_outlivesFaultsOfTheCluster(t *testing.T) {
	t.Parallel()
	type strike func(t *testing.T, c *etcdtest.Cluster, holds []*hold)
	eachMember := func(begin, end func(ctx context.Context, m *etcdproc.Process) error) strike {
		return func(t *testing.T, c *etcdtest.Cluster, holds []*hold) {
			t.Helper()
			for _, m := range c.Members {
				require.NoError(t, begin(rig.Bounded(t), m))
				goOn(t, holds)
				require.NoError(t, end(rig.Bounded(t), m))
			}
		}
	}
	kill := func(_ context.Context, m *etcdproc.Process) error { return m.Kill() }
	restart := func(ctx context.Context, m *etcdproc.Process) error { return m.Restart(ctx) }
	for name, row := range map[string]struct {
		ttl    time.Duration // long enough for a busy machine
		strike strike
	}{
		"each member killed and restarted": {ttl: 15 * time.Second, strike: eachMember(kill, restart)},
		// As while it is defragmented. Only events wait, at a watch on that member.
		"each member applies nothing": {ttl: 15 * time.Second, strike: eachMember(
			func(_ context.Context, m *etcdproc.Process) error { return m.Stall() },
			func(_ context.Context, m *etcdproc.Process) error { return m.GoOn() },
		)},
		"slow disks": {ttl: 15 * time.Second, strike: func(t *testing.T, c *etcdtest.Cluster, holds []*hold) { //nolint:thelper // a row
			const slow = 200 * time.Millisecond
			for _, m := range c.Members {
				require.NoError(t, m.SlowDisk(slow))
			}
			began := put(t, c.Client(t), "key", "")
			require.GreaterOrEqual(t, time.Since(began), slow, "the disks are fast")
			goOn(t, holds)
		}},
		// Without a majority no lease is renewed.
		"majority killed and restarted": {ttl: time.Minute, strike: func(t *testing.T, c *etcdtest.Cluster, holds []*hold) { //nolint:thelper // a row
			require.NoError(t, c.Members[0].Kill())
			require.NoError(t, c.Members[1].Kill())
			for _, h := range holds {
				rig.AwaitState(t, h.s, lease.StateJeopardy)
				require.NoError(t, h.Err(), "the hold is not valid in jeopardy")
			}
			require.NoError(t, c.Members[0].Restart(rig.Bounded(t)))
			for _, h := range holds {
				rig.AwaitState(t, h.s, lease.StateHeld)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
			holds := holdAndWait(t, cluster, row.ttl)
			row.strike(t, cluster, holds)
			for _, h := range holds {
				require.Equal(t, h.id, h.s.Status().LeaseID)
				require.NoError(t, h.Err())
				require.Empty(t, h.next)
				require.NoError(t, h.Unlock(rig.Bounded(t)))
				next := rig.Await(t, h.next, "the waiter was not served")
				require.Greater(t, next.Token(), h.Token())
				require.NoError(t, next.Unlock(rig.Bounded(t)))
			}
		})
	}
}

// A transaction compares the state of the cluster. So an isolated member does not answer one, even if it neither reads
// nor writes.
func TestTxn_isNotAnsweredByAMemberThatLags(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	lags := cluster.Members[0]
	put(t, cluster.Client(t), "key", "old")
	client := etcdtest.NewClient(t, []string{lags.Endpoint()})
	compare := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(rig.Bounded(t), limit)
		defer cancel()
		_, err := etcd.Of(client).Once(ctx).Txn([]clientv3.Cmp{clientv3.Compare(clientv3.Value("key"), "=", "old")}, nil, nil)
		return err
	}
	rig.Eventually(t, func() bool { return compare(rig.Patience) == nil }, func() string { return "no answer" })
	require.NoError(t, cluster.Isolate(lags))
	require.Error(t, compare(time.Second))
}

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
	opts := lease.Options{TTL: 30 * time.Second} // outlives the restore on a busy machine
	s := rig.NewSession(t, client, opts)
	held := rig.MustLock(t, s, "n")
	waiting := rig.Wait(t, rig.NewSession(t, etcd.Client(t), opts), "n")
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

func TestMain(m *testing.M) { etcdtest.Main(m) }
