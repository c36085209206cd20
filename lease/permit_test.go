package lease_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

func (e *env) permit(t *testing.T, name string, of int) *lease.Permit {
	t.Helper()
	p, err := e.s.TryPermit(t.Context(), name, of)
	require.NoError(t, err)
	return p
}

func (e *env) waitPermit(ctx context.Context, name string, of int, opts ...lease.LockOption) <-chan outcome[*lease.Permit] {
	return begin(e, func() (*lease.Permit, error) { return e.s.Permit(ctx, name, of, opts...) })
}

// Of very many waiters, a released permit wakes the first, and its leaving the turnstile wakes the second: no other
// sends a request.
func TestSession_Permit_wakesOne(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		held := []*lease.Permit{e.permit(t, "a", 2), e.permit(t, "a", 2)}
		ctx, cancel := context.WithCancel(t.Context())
		var waiting []<-chan outcome[*lease.Permit]
		for range 200 {
			waiting = append(waiting, e.waitPermit(ctx, "a", 2))
		}
		e.at(5 * time.Second)
		before := len(e.c.Calls(fakeetcd.Any))
		require.NoError(t, held[0].Unlock(t.Context()))
		require.NoError(t, receive(t, waiting[0]).err)
		synctest.Wait()
		require.LessOrEqual(t, len(e.c.Calls(fakeetcd.Any))-before, 8)
		cancel()
		for _, w := range waiting[1:] {
			require.ErrorIs(t, receive(t, w).err, context.Canceled)
		}
	})
}

// All callers have to agree on the number: a later one with another number gets an error, or waits until no permit of
// the old number is held.
func TestSession_Permit_anotherLimit(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		other := e.join(t)
		p, err := e.s.Permit(t.Context(), "a", 2, lease.WithOwner("old"))
		require.NoError(t, err)
		for range 10 { // whichever slot is tried first
			_, err = other.s.Permit(t.Context(), "a", 3)
			limit := new(lease.LimitError)
			require.ErrorAs(t, err, &limit)
			require.Equal(t, lease.LimitError{Name: "a", Of: 3, Limit: 2, Owner: "old", Key: e.keys(p.Name() + "/")[0]}, *limit)
			_, err = other.s.TryPermit(t.Context(), "a", 3)
			require.ErrorAs(t, err, &limit)
			e.at(e.now() + time.Second)
			require.Len(t, e.keys("a/"), 1)
		}
		waits := other.waitPermit(t.Context(), "a", 3, lease.WithLimitChange())
		e.at(e.now() + time.Minute)
		behind := e.waitPermit(t.Context(), "a", 2)
		requirePending(t, waits)
		require.NoError(t, p.Unlock(t.Context()))
		granted(t, waits)
		require.ErrorAs(t, receive(t, behind).err, new(*lease.LimitError))
		require.ErrorContains(t, second(e.s.Permit(t.Context(), "a", 2)), `lease: semaphore "a" has 3 permits, not 2, for`)
	})
}

// A caller with the wrong number that gives up does not make those with the right number fail: they wait until its key
// is gone, here with its lease.
func TestSession_Permit_wrongLimitGivesUp(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		held := e.permit(t, "a", 1000)
		for held.Slot() < 101 { // wrong might try these slots first, and be refused at once
			require.NoError(t, held.Unlock(t.Context()))
			held = e.permit(t, "a", 1000)
		}
		wrong, right := e.join(t), e.join(t)
		wrong.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Match: writes, Times: 1, OnAnswer: wrong.c.Cut}) // it never holds a permit
		gone := wrong.waitPermit(timeout(t, time.Second), "a", 101)
		e.at(2 * time.Second)
		require.Error(t, receive(t, gone).err)
		require.NoError(t, held.Err())
		require.ErrorIs(t, second(right.s.TryPermit(t.Context(), "a", 1000)), lease.ErrLocked)
		p, err := right.s.Permit(t.Context(), "a", 1000)
		require.NoError(t, err)
		require.NoError(t, p.Unlock(t.Context()))
	})
}

// Nested names cost a permit extra requests only the first time, and two concurrent callers do not take each other for
// waiters. A node of a tree is no slot.
func TestSession_Permit_besideNestedNames(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.lock(t, "a/nested")
		other := e.join(t)
		got := make(chan error, 2)
		for _, x := range []*env{e, other} {
			x.c.Inject(fakeetcd.Any, fakeetcd.Fault{Before: 2 * time.Millisecond, After: 2 * time.Millisecond})
			go func() {
				_, err := x.s.TryPermit(t.Context(), "a", 1000)
				got <- err
			}()
		}
		require.NoError(t, receive(t, got))
		require.NoError(t, receive(t, got))
		for range 10 {
			require.NoError(t, e.permit(t, "a", 1000).Unlock(t.Context()))
		}
		compared := 0
		for _, call := range e.c.Calls(fakeetcd.Txn) {
			for _, c := range call.Request.(*pb.TxnRequest).Compare {
				if string(c.Key) == "a/" && len(c.RangeEnd) > 0 {
					compared++
				}
			}
		}
		require.Equal(t, 1, compared)

		l := e.lock(t, "a")
		require.ErrorIs(t, second(e.s.TryPermit(t.Context(), "a", 1000)), lease.ErrLocked, "somebody is in the turnstile")
		require.NoError(t, l.Unlock(t.Context()))

		tree, err := e.s.LockTree(t.Context(), "b/slot/x/y-of5-z")
		require.NoError(t, err)
		waits := e.waitPermit(t.Context(), "b", 2)
		requirePending(t, waits)
		require.NoError(t, tree.Unlock(t.Context()))
		require.NoError(t, receive(t, waits).err)
	})
}

// A slot held by any other key is out of service. The error names a real holder nevertheless, also if the number is
// another.
func TestSession_Permit_slotOutOfService(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.srv.Put("a/~slot/1/by-hand", "")
		e.srv.Put("b/~slot/0/by-hand", "")
		e.srv.Put("d/~slot/0/by/hand", "")
		for _, name := range []string{"b", "d"} {
			require.ErrorIs(t, second(e.s.TryPermit(timeout(t, time.Minute), name, 1)), lease.ErrLocked, "there is no other slot")
			sent := len(e.c.Calls(fakeetcd.Any))
			require.Error(t, second(e.s.Permit(timeout(t, time.Second), name, 1)))
			require.Less(t, len(e.c.Calls(fakeetcd.Any))-sent, 20)
		}
		e.permit(t, "c", 3)
		for range 10 {
			p := e.permit(t, "a", 2)
			require.Zero(t, p.Slot())
			locked := new(lease.LockedError)
			require.ErrorAs(t, second(e.s.TryPermit(t.Context(), "a", 2)), &locked)
			require.Contains(t, e.keys("a/"), locked.Key)
			require.NoError(t, p.Unlock(t.Context()))
			require.ErrorAs(t, second(e.s.TryPermit(t.Context(), "c", 1024, lease.WithLimitChange())), &locked)
			require.Equal(t, e.keys("c/~slot/")[0], locked.Key)
		}
		time.Sleep(time.Second)
		require.Equal(t, 1, e.s.KeysInUse(), "that of the permit of c")
	})
}

// The place in the turnstile is deleted as its owner takes a slot. Nothing was put, so nothing is left to clean up once
// the loss is settled.
func TestSession_Permit_placeIsLostAtTheSlot(t *testing.T) {
	bubble(t, func(t *testing.T, a *env) {
		left, hooks := cleanUps()
		b := open(t, a.srv, lease.Options{Hooks: hooks})
		p := a.permit(t, "s", 1)
		waiting := b.waitPermit(t.Context(), "s", 1)
		b.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Before: time.Second, Match: writes})
		require.NoError(t, p.Unlock(t.Context()))
		synctest.Wait()
		require.Len(t, b.keys("s/"), 1)
		require.True(t, b.srv.Delete(b.keys("s/")[0]))
		requireLost(t, receive(t, waiting).err, lease.ReasonKeyDeleted)
		b.at(time.Minute)
		require.Zero(t, left.Load())
	})
}
