package interop_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// Each of etcd's own locks and ours exclude each other, in the order of arrival: each kind of etcd's locks waits behind
// one of ours, and one of ours waits behind it. Readers hold the lock together. Etcd's own locks count as writers: each
// waits for all readers ahead of it, and no reader behind passes it. They may use the lease of one of our sessions, which
// has keys of its own. TryLock names the holder.
func TestLock_standsInOneOrderWithEtcdsOwnLocks(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	ours := func() interopPeer { // each on its own session, to enter etcd's queue at once
		return sessionPeer(rig.NewSession(t, srv.Client(t), lease.Options{}))
	}
	reader := func() interopPeer { return readerPeer(t, srv) }
	mutex, election := mutexPeer(t, srv), stockCandidate(t, srv, "a proposal")
	etcdctl, debian := etcdctlPeer(etcdtest.Etcdctl(t), srv, "lock"), etcdctlPeer(etcdtest.DebianEtcdctl(t), srv, "lock")

	lender := rig.NewSession(t, srv.Client(t), lease.Options{})
	lent := newEtcdSession(t, srv.Client(t), concurrency.WithLease(lender.Status().LeaseID))
	borrower := interopPeer{"concurrency.Mutex on our lease", func(ctx context.Context, name string) (interopHold, error) {
		m := concurrency.NewMutex(lent, name)
		return heldBy(m, m.Lock(ctx), (*concurrency.Mutex).Unlock)
	}}

	var queue [][]*contender // readers that come one after the other have one turn
	var last *contender
	for _, p := range []interopPeer{
		ours(), mutex, etcdctl, borrower, sessionPeer(lender), ours(), mutex, ours(), debian, ours(), ours(), election, ours(), reader(), reader(), mutex, reader(), etcdctl,
		reader(), reader(), reader(), ours(), mutex, reader(), reader(), mutex, etcdctl, ours(),
	} {
		together := last != nil && p.name == "reader" && last.peer.name == "reader"
		last = enterQueue(t, srv, p, "job")
		if together {
			queue[len(queue)-1] = append(queue[len(queue)-1], last)
		} else {
			queue = append(queue, []*contender{last})
		}
	}
	last.requireWaiting(t)
	s := rig.NewSession(t, srv.Client(t), lease.Options{})
	left := len(srv.Keys(t, "job/"))
	for i, turn := range queue {
		var keys []string
		for _, c := range turn {
			keys = append(keys, c.await(t).key)
		}
		_, err := s.TryLock(rig.Bounded(t), "job")
		locked, ok := errors.AsType[*lease.LockedError](err)
		require.True(t, ok, "%v", err)
		require.Contains(t, keys, locked.Key)
		require.Equal(t, srv.KeyValues(t, locked.Key)[0].CreateRevision, locked.Token.Revision())
		require.Len(t, srv.Keys(t, "job/"), left, "TryLock has left something")
		for _, c := range turn {
			for _, later := range slices.Concat(queue[i+1:]...) {
				require.False(t, later.done(), "%s was granted while %s of turn %d held", later.peer.name, c.peer.name, i)
			}
			c.unlock(t)
			left--
		}
	}
	require.Empty(t, srv.Keys(t, "job/"))
}

// "etcdctl lock" of a semaphore's name blocks new permits and waits until all permits are released. Of a slot's name it
// takes that slot out of service.
func TestPermit_drainedByEtcdctl(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	s := rig.NewSession(t, srv.Client(t), lease.Options{})
	etcdctl := etcdctlPeer(etcdtest.Etcdctl(t), srv, "lock")
	out := enterQueue(t, srv, etcdctl, "job/~slot/0")
	out.await(t)
	p, err := s.TryPermit(rig.Bounded(t), "job", 2)
	require.NoError(t, err)
	require.Equal(t, 1, p.Slot())
	_, err = s.TryPermit(rig.Bounded(t), "job", 2)
	require.ErrorIs(t, err, lease.ErrLocked)
	out.unlock(t)

	drain := enterQueue(t, srv, etcdctl, "job")
	drain.requireWaiting(t)
	_, err = s.TryPermit(rig.Bounded(t), "job", 2)
	require.ErrorIs(t, err, lease.ErrLocked)
	require.NoError(t, p.Unlock(rig.Bounded(t)))
	drain.await(t)
	drain.unlock(t)
	p, err = s.TryPermit(rig.Bounded(t), "job", 2)
	require.NoError(t, err)
	require.NoError(t, p.Unlock(rig.Bounded(t)))
	require.Empty(t, srv.Keys(t, "job/"))
}

// A session whose client has a namespace puts all its keys into the namespace, also in commits that its locks share.
// Locks of two namespaces do not exclude each other.
func TestNamespace_hasAllKeys(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	inside := func(prefix string) *lease.Session {
		c := srv.Client(t)
		c.KV = namespace.NewKV(c.KV, prefix)
		c.Watcher = namespace.NewWatcher(c.Watcher, prefix)
		c.Lease = namespace.NewLease(c.Lease, prefix)
		return rig.NewSession(t, c, lease.Options{})
	}
	a, bare, ctx := inside("a/"), rig.NewSession(t, srv.Client(t), lease.Options{}), rig.Bounded(t)
	const each = 106 // keys of a session
	for i, s := range []*lease.Session{a, inside("b/"), bare} {
		_, err := s.Lock(ctx, "one")
		require.NoError(t, err)
		_, err = s.TryLockAll(ctx, "two", "three")
		require.NoError(t, err)
		_, err = s.RLock(ctx, "read")
		require.NoError(t, err)
		_, err = s.Permit(ctx, "permits", 2)
		require.NoError(t, err)
		leads, err := election.Campaign(ctx, s, "leader", election.Options{Value: "x"})
		require.NoError(t, err)
		require.NoError(t, leads.Proclaim(ctx, "y"))
		rig.Spread(t, 100, 100, func(i int) error { // these locks share commits
			_, err := s.Lock(ctx, fmt.Sprintf("many%d", i))
			return err
		})
		require.Len(t, srv.Keys(t, [...]string{"a/", "b/", ""}[i]), [...]int{each, each, 3 * each}[i])
	}

	other, next := inside("a/"), make(chan error, 1)
	go func() {
		_, err := other.Lock(ctx, "one")
		next <- err
	}()
	rig.AwaitQueue(t, srv.Client(t), "a/one", 2)
	require.NoError(t, a.Close(ctx))
	require.NoError(t, rig.Await(t, next, "the next holder"))
	require.Len(t, srv.Keys(t, "a/"), 1)
	require.Len(t, srv.Keys(t, "b/"), each)
}

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

func TestMain(m *testing.M) { etcdtest.Main(m) }
