package integration_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/lease"
)

// TestLock_oneSessionTakesTurns is pain 4: goroutines of one session exclude each other on one name, are served in
// order, and the Unlock of one does not free another's lock.
func TestLock_oneSessionTakesTurns(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	s := newSession(t, srv.Client(t), lease.Options{})
	holder := mustLock(t, s, "n")
	_, err := s.TryLock(bounded(t), "n")
	require.ErrorIs(t, err, lease.ErrLocked)
	var waiters []*attempt
	for range 5 {
		waiters = append(waiters, goLock(bounded(t), s, "n").standing(t))
	}
	for n, next := range waiters {
		for _, w := range waiters[n:] {
			w.waiting(t)
		}
		require.NoError(t, holder.Unlock(bounded(t)))
		l := next.granted(t)
		require.Greater(t, l.Token(), holder.Token())
		require.ErrorIs(t, holder.Unlock(bounded(t)), lease.ErrUnlocked)
		requireHeld(t, srv, l)
		require.Equal(t, []string{l.Key()}, srv.Keys(t, "n/"), "the others wait in the session")
		holder = l
	}
	require.NoError(t, holder.Unlock(bounded(t)))
	require.Empty(t, srv.Keys(t, "n/"))
}

// TestLock_nestedNames is pain 9 and P10: names that lie below each other in etcd's key space do not affect each other,
// in either direction, whichever is older, held or waited for.
func TestLock_nestedNames(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	names := []string{"a", "a/b", "a/b/c"}
	for first, order := range [][]string{{"a", "a/b", "a/b/c"}, {"a/b/c", "a/b", "a"}, {"a/b", "a/b/c", "a"}, {"a/b", "a", "a/b/c"}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			client := srv.Client(t)
			prefix := fmt.Sprintf("%d/", first)
			s := newSession(t, client, lease.Options{Prefix: prefix})
			rival := newSession(t, client, lease.Options{Prefix: prefix})

			held := map[string]*lease.Lock{}
			waiting := map[string]*attempt{}
			keys := 0
			for _, name := range order { // each is taken while the ones before it are held and waited for
				l, err := s.TryLock(bounded(t), name)
				require.NoError(t, err, "TryLock %q beside %v", name, held)
				require.NoError(t, l.Unlock(bounded(t)))
				held[name] = mustLock(t, s, name)
				waiting[name] = goLock(bounded(t), rival, name)
				keys += 2
				awaitQueue(t, srv, prefix[:1], keys)
			}
			for _, name := range names { // each says who holds it, whoever holds the others
				_, err := rival.TryLock(bounded(t), name)
				var locked *lease.LockedError
				require.ErrorAs(t, err, &locked)
				require.Equal(t, name, locked.Name)
				require.Equal(t, held[name].Key(), locked.Key)
				require.Equal(t, held[name].Token(), locked.Token)
			}
			for n, name := range order { // each is handed over while the others stay as they are
				for _, other := range order[n:] {
					waiting[other].waiting(t)
				}
				require.NoError(t, held[name].Unlock(bounded(t)))
				l := waiting[name].granted(t)
				requireHeld(t, srv, l)
				require.NoError(t, l.Unlock(bounded(t)))
			}
			require.Empty(t, srv.Keys(t, prefix))
		})
	}
}

// TestTryLock_tellsHolder checks what TryLock says, and that it leaves nothing.
func TestTryLock_tellsHolder(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	s := newSession(t, srv.Client(t), lease.Options{Owner: "the session"})
	rival := newSession(t, srv.Client(t), lease.Options{Era: 7})
	for owner, opts := range map[string]lease.LockOptions{"the session": {}, "the lock": {Owner: "the lock"}} {
		holder, err := s.TryLockWith(bounded(t), "n", opts)
		require.NoError(t, err)
		requireHeld(t, srv, holder)
		l, err := rival.TryLock(bounded(t), "n")
		require.ErrorIs(t, err, lease.ErrLocked)
		require.Nil(t, l)
		var locked *lease.LockedError
		require.ErrorAs(t, err, &locked)
		require.Equal(t, "n", locked.Name)
		require.Equal(t, owner, locked.Owner)
		require.Equal(t, holder.Key(), locked.Key)
		require.Equal(t, holder.Token().Revision(), locked.Token.Revision())
		require.Equal(t, uint16(7), locked.Token.Era(), "of the session that asks")
		require.Equal(t, []string{holder.Key()}, srv.Keys(t, "n/"))
		require.NoError(t, holder.Unlock(bounded(t)))
	}
	l, err := rival.TryLock(bounded(t), "n")
	require.NoError(t, err)
	require.NoError(t, l.Unlock(bounded(t)))
}

// TestTryLock_doesNotOvertake checks that TryLock fails while somebody waits, even when the lock is free at that
// moment: the waiter has not been told yet.
func TestTryLock_doesNotOvertake(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rival := newSession(t, srv.Client(t), lease.Options{})
	holder := mustLock(t, rival, "n")
	rig, waiter, key := waiterBehind(t, srv, holder, lease.Options{})
	told := make(chan struct{})
	news := rig.in.Inject(t, faults.Rule{
		Fault: faults.DelayAnswer, Method: faults.Watch, Until: told, Times: 1,
		Match: func(message any) bool {
			resp, ok := message.(*etcdserverpb.WatchResponse)
			return ok && len(resp.Events) > 0
		},
	})
	require.NoError(t, holder.Unlock(bounded(t)))
	awaitClosed(t, news.Hit(), "the waiter's watch did not tell")
	_, err := rival.TryLock(bounded(t), "n")
	var locked *lease.LockedError
	require.ErrorAs(t, err, &locked)
	require.Equal(t, key, locked.Key)
	require.Equal(t, []string{key}, srv.Keys(t, "n/"))
	close(told)
	require.NoError(t, waiter.granted(t).Unlock(bounded(t)))
	requireFree(t, srv, rival, "n")
}

// TestTryLock_answerLostWhileRivalWaits checks that an attempt whose answer was lost is the holder nevertheless if it
// entered first, though somebody waits behind it by the time that it asks again.
func TestTryLock_answerLostWhileRivalWaits(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rival := newSession(t, srv.Client(t), lease.Options{})
	rig := newLockRig(t, srv, lease.Options{TTL: faultTTL})
	lost := rig.in.Inject(t, faults.Rule{Fault: faults.LoseAnswer, Method: faults.Txn, Match: isEnter, Times: 1})
	var waiter *attempt
	rig.in.OnRequest(func(_ string, req any) {
		if isEnter(req) && lost.Hits() == 1 && waiter == nil {
			waiter = goLock(bounded(t), rival, "n")
			awaitQueue(t, srv, "n", 2)
		}
	})
	l, err := rig.TryLock(bounded(t), "n")
	require.NoError(t, err)
	requireHeld(t, srv, l)
	waiter.waiting(t)
	require.NoError(t, l.Unlock(bounded(t)))
	require.NoError(t, waiter.granted(t).Unlock(bounded(t)))
}

// TestLock_order is the queue over several clients: first come, first served.
func TestLock_order(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	holder := mustLock(t, newSession(t, srv.Client(t), lease.Options{}), "n")
	served := make(chan int, 10)
	var keys []string
	for n := range cap(served) {
		s := newSession(t, srv.Client(t), lease.Options{})
		go func() {
			_ = s.Do(bounded(t), "n", func(context.Context, fence.Token) error {
				served <- n
				return nil
			})
		}()
		keys = awaitQueue(t, srv, "n", n+2)
	}
	require.Len(t, keys, cap(served)+1)
	require.NoError(t, holder.Unlock(bounded(t)))
	for n := range cap(served) {
		require.Equal(t, n, <-served)
	}
	awaitQueue(t, srv, "n", 0)
}

// TestLock_handOverDisturbed is pain 6 for a lock that is handed over within a session: whatever becomes of the request or of
// its answer, each waiter gets the lock once and in order, and nothing stays.
func TestLock_handOverDisturbed(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	for name, rule := range map[string]faults.Rule{
		"answer lost":             {Fault: faults.LoseAnswer},
		"answer lost in silence":  {Fault: faults.LoseAnswer, Silent: true},
		"request lost":            {Fault: faults.LoseRequest},
		"request lost in silence": {Fault: faults.LoseRequest, Silent: true},
		"request late":            {Fault: faults.LateRequest, Delay: 300 * time.Millisecond},
		"late, in silence":        {Fault: faults.LateRequest, Silent: true, Delay: 1200 * time.Millisecond},
		"request delayed":         {Fault: faults.DelayRequest, Delay: 300 * time.Millisecond},
		"answer delayed":          {Fault: faults.DelayAnswer, Delay: 1500 * time.Millisecond},
	} {
		for who, gives := range map[string]bool{"": false, ", Unlock gives up": true} {
			t.Run(name+who, func(t *testing.T) {
				t.Parallel()
				rig := newLockRig(t, srv, lease.Options{TTL: faultTTL})
				n := name + who
				holder := mustLock(t, rig.Session, n)
				var waiters []*attempt
				for range 3 {
					waiters = append(waiters, goLock(bounded(t), rig.Session, n).standing(t))
				}
				r := rule // there are two of them
				r.Method, r.Match, r.Times = faults.Txn, isHandOver, 1
				fault := rig.in.Inject(t, r)
				ctx := bounded(t)
				if gives {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
					defer cancel()
				}
				if err := holder.Unlock(ctx); err != nil {
					require.True(t, gives)
					require.ErrorIs(t, err, context.DeadlineExceeded)
				}
				for _, next := range waiters {
					l := next.granted(t)
					require.Greater(t, l.Token(), holder.Token())
					holder = l
					requireHeld(t, srv, l)
					require.NoError(t, l.Unlock(bounded(t)))
				}
				require.Equal(t, 1, fault.Hits())
				if rule.Fault == faults.LateRequest {
					time.Sleep(rule.Delay) // it has arrived by then
				}
				awaitQueue(t, srv, n, 0)
			})
		}
	}
}
