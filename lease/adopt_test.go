package lease_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// startAdopted is a session on a lease of 30 s that was taken ten seconds before.
func startAdopted(t *testing.T, faults map[fakeetcd.Method]fakeetcd.Fault) (*env, clientv3.LeaseID) {
	t.Helper()
	srv := fakeetcd.New()
	t.Cleanup(srv.Close)
	c := srv.NewClient(t.Context())
	granted, err := c.Grant(t.Context(), 30)
	require.NoError(t, err)
	time.Sleep(third)
	e := &env{srv: srv, c: c, began: time.Now()}
	for m, f := range faults {
		c.Inject(m, f)
	}
	e.s, err = lease.Adopt(t.Context(), c.Client, granted.ID, lease.Options{TTL: 7 * time.Second, SeparateCommits: separate})
	require.NoError(t, err)
	t.Cleanup(func() { _ = e.s.Close(context.WithoutCancel(t.Context())) })
	return e, granted.ID
}

// pain 37: the deadline is counted from the send of the renewal that Adopt made.
func TestAdopt_countsFromItsOwnRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, id := startAdopted(t, map[fakeetcd.Method]fakeetcd.Fault{fakeetcd.KeepAliveOnce: {Times: 1, After: time.Second}})
		require.Equal(t, time.Second, e.now())
		require.Equal(t, lease.Status{State: lease.Held, LeaseID: id, TTL: ttl, Deadline: e.began.Add(usable)}, e.s.Status())
		e.at(third)
		require.Equal(t, third, e.sent(fakeetcd.KeepAliveOnce)[1])
		require.Empty(t, e.c.Calls(fakeetcd.Grant)[1:])
	})
}

// Close takes the locks off the lease and leaves the lease.
func TestAdopt_Close_leavesTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, id := startAdopted(t, nil)
		_, err := e.c.Put(t.Context(), "its owner's", "", clientv3.WithLease(id))
		require.NoError(t, err)
		var locks []*lease.Lock
		for i := range 100 {
			locks = append(locks, e.lock(t, string(rune('a'+i))))
		}
		require.NoError(t, locks[0].Unlock(t.Context()))
		next := e.wait(t.Context(), locks[1].Name())
		require.NoError(t, e.s.Close(t.Context()))
		requireLost(t, receive(t, next).err, lease.SessionClosed)
		requireLost(t, context.Cause(locks[2].Context()), lease.SessionClosed)
		require.Equal(t, []string{"its owner's"}, e.keys(""))
		require.Equal(t, []clientv3.LeaseID{id}, e.leaseIDs())
		require.Empty(t, e.c.Calls(fakeetcd.Revoke))
		require.Zero(t, e.now())
	})
}

// pain 15: the same behind a black hole ends with ctx, and says what it could not do.
func TestAdopt_Close_isBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := startAdopted(t, nil)
		e.lock(t, "a")
		e.c.Cut()
		require.ErrorIs(t, e.s.Close(timeout(t, 3*time.Second)), context.DeadlineExceeded)
		require.Equal(t, 3*time.Second, e.now())
	})
}

// lockLostToUs is a lock on an adopted lease that our renewals have lost and its owner keeps alive.
func lockLostToUs(t *testing.T, e *env, id clientv3.LeaseID) *lease.Lock {
	t.Helper()
	alive, err := e.srv.NewClient(t.Context()).KeepAlive(t.Context(), id)
	require.NoError(t, err)
	go func() {
		for range alive {
		}
	}()
	l := e.lock(t, "a")
	e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Lose: fakeetcd.Request})
	e.at(usable)
	e.c.Reset()
	return l
}

// A handle that is lost is deleted by Unlock even if the owner of the lease keeps that alive.
func TestAdopt_Unlock_afterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, id := startAdopted(t, nil)
		l := lockLostToUs(t, e, id)
		requireLost(t, context.Cause(l.Context()), lease.DeadlinePassed)
		e.at(10 * ttl)
		require.Equal(t, []string{l.Key()}, e.keys("a"))
		requireLost(t, l.Unlock(t.Context()), lease.DeadlinePassed)
		synctest.Wait()
		require.Empty(t, e.keys("a"))
		require.Equal(t, []clientv3.LeaseID{id}, e.leaseIDs())

		again := e.lock(t, "a")
		require.Greater(t, again.Token(), l.Token())
		require.Equal(t, 7*time.Second, e.s.Status().TTL, "the session has a lease of its own now")
		require.NoError(t, e.s.Close(t.Context()))
		require.Equal(t, []clientv3.LeaseID{id}, e.leaseIDs())
	})
}

// P4: one lost answer does not make Close leave a key on a lease that its owner keeps alive.
func TestAdopt_closeRetriesTheKeysOfALostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, id := startAdopted(t, nil)
		l := lockLostToUs(t, e, id)
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Request})
		requireLost(t, l.Unlock(t.Context()), lease.DeadlinePassed)
		synctest.Wait()
		_, err := e.s.TryLock(t.Context(), "b")
		require.NoError(t, err)
		require.NoError(t, e.s.Close(t.Context()))
		require.Empty(t, e.keys(""))
	})
}
