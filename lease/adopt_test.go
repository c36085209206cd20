package lease_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// startAdopted starts a session on a lease of 30 s that was granted ten seconds before.
func startAdopted(t *testing.T, prepare ...func(*fakeetcd.Client)) (*env, clientv3.LeaseID) {
	t.Helper()
	srv := newServer(t)
	c := srv.NewClient(t.Context())
	granted, err := c.Grant(t.Context(), 30)
	require.NoError(t, err)
	time.Sleep(third)
	e := &env{srv: srv, c: c, began: time.Now()}
	for _, do := range prepare {
		do(c)
	}
	e.s, err = lease.Adopt(t.Context(), c.Client, granted.ID, lease.Options{TTL: 7 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { _ = e.s.Close(context.WithoutCancel(t.Context())) })
	return e, granted.ID
}

// The deadline is counted from the send of the renewal that Adopt made.
func TestAdopt_countsFromItsOwnRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, id := startAdopted(t, faulty(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Times: 1, After: time.Second}))
		require.Equal(t, time.Second, e.now())
		require.Equal(t, lease.Status{State: lease.StateHeld, LeaseID: id, TTL: ttl, Deadline: e.began.Add(usable)}, e.s.Status())
		e.at(third)
		require.Equal(t, third, e.sent(fakeetcd.KeepAliveOnce)[1])
		require.Empty(t, e.c.Calls(fakeetcd.Grant)[1:])
	})
}

// The member that answers may not know the client's auth token yet.
func TestAdopt_authenticatesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, id := startAdopted(t, faulty(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Times: 1, Err: rpctypes.ErrGRPCInvalidAuthToken}))
		require.Equal(t, id, e.s.Status().LeaseID)
	})
}

// Close deletes the locks' keys and leaves the lease.
func TestAdopt_Close_leavesTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, id := startAdopted(t)
		e.put(t, "its owner's", "", id)
		var locks []*lease.Lock
		for i := range 100 {
			locks = append(locks, e.lock(t, string(rune('À'+i))))
		}
		require.NoError(t, locks[0].Unlock(t.Context()))
		next := e.wait(t.Context(), locks[1].Name())
		require.NoError(t, e.s.Close(t.Context()))
		requireLost(t, receive(t, next).err, lease.ReasonSessionClosed)
		requireLost(t, context.Cause(locks[2].Context()), lease.ReasonSessionClosed)
		require.Equal(t, []string{"its owner's"}, e.keys(""))
		require.Equal(t, []clientv3.LeaseID{id}, e.leaseIDs())
		require.Empty(t, e.c.Calls(fakeetcd.Revoke))
		require.Zero(t, e.now())
	})
}

// On a lease that lives on, Close reports what it could not clean up: a key that it may not delete, and a request that
// may still arrive. It deletes everything else, and does not wait in vain.
func TestAdopt_Close_saysWhatMayBeLeft(t *testing.T) {
	for name, row := range map[string]struct {
		fault fakeetcd.Fault // when taking "b"
		want  string
		left  int // keys at the end
	}{
		"a request is late":     {fakeetcd.Fault{Before: ttl / 2, Late: true}, "may still put the key", 1},
		"a deletion is refused": {fakeetcd.Fault{Lose: fakeetcd.Answer}, "permission denied", 1},
	} {
		inBubble(t, name, func(t *testing.T) {
			e, _ := startAdopted(t)
			for i := range 10 {
				e.lock(t, fmt.Sprintf("a/%d", i))
			}
			row.fault.Match, row.fault.Times = touches("b/"), 1
			e.c.Inject(fakeetcd.Txn, row.fault)
			e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Err: errDenied, Match: touches("b/")})
			require.ErrorIs(t, second(e.s.TryLock(timeout(t, time.Second), "b")), context.DeadlineExceeded)
			if row.fault.Late {
				e.c.Reset()
			}
			require.ErrorContains(t, e.s.Close(t.Context()), row.want)
			require.Equal(t, time.Second, e.now())
			require.Empty(t, e.keys("a"))
			e.at(ttl / 2)
			require.Len(t, e.keys("b"), row.left)
		})
	}
}

// Behind a black hole Close ends with its context, and says what it could not do.
func TestAdopt_Close_isBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := startAdopted(t)
		e.lock(t, "a")
		e.c.Cut()
		require.ErrorIs(t, e.s.Close(timeout(t, 3*time.Second)), context.DeadlineExceeded)
		require.Equal(t, 3*time.Second, e.now())
	})
}

// lockLostToUs returns a lock on an adopted lease that our session has lost and its owner keeps alive.
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

// Unlock deletes the key of a lost handle even if the owner keeps the lease alive.
func TestAdopt_Unlock_afterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, id := startAdopted(t)
		l := lockLostToUs(t, e, id)
		requireLost(t, context.Cause(l.Context()), lease.ReasonDeadlinePassed)
		e.at(10 * ttl)
		require.Equal(t, []string{l.Key()}, e.keys("a"))
		requireLost(t, l.Unlock(t.Context()), lease.ReasonDeadlinePassed)
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

// A lost request does not make Close leave a key on a lease that its owner keeps alive.
func TestAdopt_closeRetriesTheKeysOfALostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, id := startAdopted(t)
		l := lockLostToUs(t, e, id)
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Request})
		requireLost(t, l.Unlock(t.Context()), lease.ReasonDeadlinePassed)
		synctest.Wait()
		e.lock(t, "b")
		require.NoError(t, e.s.Close(t.Context()))
		require.Empty(t, e.keys(""))
	})
}
