package integration_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/lease"
)

// adopt is a session on somebody else's lease that the test's cleanup closes.
func adopt(t *testing.T, client *clientv3.Client, id clientv3.LeaseID, opts lease.Options) *lease.Session {
	t.Helper()
	s, err := lease.Adopt(bounded(t), client, id, resolved(opts))
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		_ = s.Close(ctx) // the test may have cut it off
	})
	return s
}

// closeSession fails the test if Close does not come back.
func closeSession(t *testing.T, s *lease.Session) error {
	t.Helper()
	ctx, closed := bounded(t), make(chan error, 1)
	go func() { closed <- s.Close(ctx) }()
	select {
	case err := <-closed:
		return err
	case <-time.After(patience + time.Second): // more than ctx
		panic("Close does not end") // nor would the cleanup's
	}
}

func TestAdopt_putsLocksOnTheLeaseAndCloseTakesOnlyThoseAway(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	owner := newEtcdSession(t, client, concurrency.WithTTL(5))
	theirs := concurrency.NewMutex(owner, "theirs")
	require.NoError(t, theirs.Lock(bounded(t)))

	s := adopt(t, client, owner.Lease(), lease.Options{})
	require.Equal(t, owner.Lease(), s.Status().LeaseID)
	require.Equal(t, 5*time.Second, s.Status().TTL)
	var locks []*lease.Lock
	for i := range 100 { // more than one sweep of the reaper takes
		locks = append(locks, mustLock(t, s, "ours/"+strconv.Itoa(i)))
	}
	waiter := goLock(bounded(t), s, "ours/0").standing(t) // of this session: Close turns it away, too
	for _, kv := range srv.KeyValues(t, "ours/") {
		require.Equal(t, int64(owner.Lease()), kv.Lease, "%s", kv.Key)
	}

	require.NoError(t, closeSession(t, s))
	require.ErrorIs(t, second(waiter.result(t)), lease.ErrClosed)
	for _, l := range locks {
		require.ErrorIs(t, awaitDone(t, l), lease.ErrClosed)
	}
	require.Equal(t, []string{theirs.Key()}, srv.Keys(t, ""))
	require.Equal(t, []clientv3.LeaseID{owner.Lease()}, srv.Leases(t))
	select {
	case <-owner.Done():
		require.FailNow(t, "the owner's session has ended")
	default:
	}
	require.NoError(t, theirs.Unlock(bounded(t)))
}

func TestAdopt_endsWithTheLeaseAndHealsOntoOneOfItsOwn(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	owner := newEtcdSession(t, client)
	s := adopt(t, client, owner.Lease(), lease.Options{TTL: 7 * time.Second})
	first, second := mustLock(t, s, "first"), mustLock(t, s, "second")

	require.NoError(t, owner.Close()) // which revokes the lease
	for _, l := range []*lease.Lock{first, second} {
		var lost *lease.LostError
		require.ErrorAs(t, awaitDone(t, l), &lost)
		require.Equal(t, lease.LeaseGone, lost.Reason)
		require.Equal(t, owner.Lease(), lost.LeaseID)
		require.ErrorIs(t, l.Unlock(bounded(t)), lease.ErrLost)
	}

	again := mustLock(t, s, "first")
	require.Greater(t, again.Token(), second.Token())
	require.NotEqual(t, owner.Lease(), s.Status().LeaseID)
	require.Equal(t, 7*time.Second, s.Status().TTL)
	require.Equal(t, []clientv3.LeaseID{s.Status().LeaseID}, srv.Leases(t))
	require.NoError(t, closeSession(t, s))
	require.Empty(t, srv.Leases(t))
	require.Empty(t, srv.Keys(t, ""))
}

func TestAdopt_refusesALeaseThatIsGoneOrTooShort(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	grant := func(ttl time.Duration) clientv3.LeaseID {
		resp, err := client.Grant(bounded(t), int64(ttl/time.Second))
		require.NoError(t, err)
		return resp.ID
	}
	revoked, short := grant(time.Minute), grant(minTTL)
	srv.Revoke(t, revoked)

	for name, id := range map[string]clientv3.LeaseID{"unknown": 4711, "revoked": revoked} {
		_, err := lease.Adopt(bounded(t), client, id, lease.Options{})
		require.ErrorIs(t, err, rpctypes.ErrLeaseNotFound, name)
		require.ErrorContains(t, err, strconv.FormatInt(int64(id), 16))
	}
	_, err := lease.Adopt(bounded(t), client, clientv3.NoLease, lease.Options{})
	require.ErrorContains(t, err, "id is 0")
	_, err = lease.Adopt(bounded(t), client, short, lease.Options{Margin: minTTL})
	require.ErrorContains(t, err, "lease: Options.Margin is 2s, want 0 to less than the adopted lease's TTL, 2s")
	adopt(t, client, short, lease.Options{Margin: minTTL - time.Millisecond})
	require.Empty(t, srv.Keys(t, ""))
}

// interopCutOff adopts a lease whose owner keeps it alive, and loses it: to this session's deadline alone.
// While the rule that it returns is at work, nothing more that is a transaction reaches the server.
func interopCutOff(t *testing.T, srv *etcdtest.Server) (s *lease.Session, l *lease.Lock, owner *concurrency.Session, txns *faults.Injection) {
	t.Helper()
	owner = newEtcdSession(t, srv.Client(t), concurrency.WithTTL(int(minTTL/time.Second)))
	in := faults.NewInterceptor(t)
	s = adopt(t, srv.Client(t, etcdtest.Dial(in.DialOptions()...)), owner.Lease(), lease.Options{})
	l = mustLock(t, s, "job")
	renewals := in.Inject(t, faults.Rule{Fault: faults.LoseRequest, Method: faults.LeaseKeepAlive, Silent: true})
	txns = in.Inject(t, faults.Rule{Fault: faults.LoseRequest, Method: faults.Txn})

	var lost *lease.LostError
	require.ErrorAs(t, awaitDone(t, l), &lost)
	require.Equal(t, lease.DeadlinePassed, lost.Reason)
	renewals.Remove()
	return s, l, owner, txns
}

func TestAdopt_unlockAfterItsOwnDeadlineRemovesTheKey(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	s, l, owner, txns := interopCutOff(t, srv)

	require.ErrorIs(t, l.Unlock(bounded(t)), lease.ErrLost)
	require.Equal(t, []string{l.Key()}, srv.Keys(t, ""), "without a transaction nobody can have deleted it")
	txns.Remove()
	awaitKeyCount(t, srv, "", 0)

	again := mustLock(t, s, "job")
	require.Greater(t, again.Token(), l.Token())
	require.NotEqual(t, owner.Lease(), s.Status().LeaseID)
	require.Contains(t, srv.Leases(t), owner.Lease())
	require.NoError(t, closeSession(t, s))
	require.Equal(t, []clientv3.LeaseID{owner.Lease()}, srv.Leases(t))
}

// What is still to be removed from an adopted lease, Close removes, though the session has a lease of its own by
// then: as long as the owner renews the lease, nothing else does.
func TestAdopt_closeRemovesTheKeysOfAnAdoptedLeaseLostBefore(t *testing.T) {
	t.Parallel()
	for name, unlock := range map[string]bool{"unlocked": true, "not unlocked": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := etcdtest.Start(t, etcdtest.Options{})
			s, l, owner, txns := interopCutOff(t, srv)
			if unlock {
				require.ErrorIs(t, l.Unlock(bounded(t)), lease.ErrLost)
			}
			// The session heals, by way of an acquisition that does not come to its end.
			ctx, cancel := context.WithCancel(bounded(t))
			acquired := make(chan error, 1)
			go func() {
				_, err := s.Lock(ctx, "another")
				acquired <- err
			}()
			for status := range s.Changes(bounded(t)) {
				if status.State == lease.Held && status.LeaseID != owner.Lease() {
					break
				}
			}
			cancel()
			require.ErrorIs(t, <-acquired, context.Canceled)
			require.Contains(t, srv.Keys(t, ""), l.Key())
			txns.Remove()

			require.NoError(t, closeSession(t, s))
			require.Empty(t, srv.Keys(t, ""))
			require.Equal(t, []clientv3.LeaseID{owner.Lease()}, srv.Leases(t))
		})
	}
}

// The other way round: etcd's own locks on a session of ours.
func TestSession_lendsItsLeaseToEtcdsOwnLocks(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	s := newSession(t, client, lease.Options{TTL: minTTL})
	id := s.Status().LeaseID
	borrower := newEtcdSession(t, client, concurrency.WithLease(id))
	mutex := concurrency.NewMutex(borrower, "job")

	require.NoError(t, mutex.Lock(bounded(t)))
	_, err := s.TryLock(bounded(t), "job")
	require.ErrorIs(t, err, lease.ErrLocked)
	ours := enterQueue(t, srv, sessionPeer(s), "job")
	ours.requireWaiting(t)
	require.NoError(t, mutex.Unlock(bounded(t)))
	held := ours.await(t)
	require.NotEqual(t, mutex.Key(), held.key)
	require.ErrorIs(t, mutex.TryLock(bounded(t)), concurrency.ErrLocked)
	require.Equal(t, []string{held.key}, srv.Keys(t, "job/"), "ours has a key of its own on the same lease")
	require.Equal(t, int64(id), srv.KeyValues(t, held.key)[0].Lease)
	ours.unlock(t)

	// Orphan ends their renewals. Ours go on, well past the TTL.
	l := mustLock(t, s, "job")
	borrower.Orphan()
	orphaned := time.Now()
	require.Eventually(t, func() bool {
		return s.Status().Deadline.Sub(orphaned) > 3*minTTL
	}, patience, 10*time.Millisecond)
	require.Equal(t, lease.Held, s.Status().State)
	require.Equal(t, id, s.Status().LeaseID)
	require.NoError(t, l.Context().Err())
	require.NoError(t, l.Unlock(bounded(t)))
}
