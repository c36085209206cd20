package integration_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/lease"
)

// awaitWatches waits until a lone waiter has its two watches, on its own key and on the one ahead, and has looked at
// both keys since: from then on nothing but the watches can tell it anything.
func (r *lockRig) awaitWatches(t *testing.T) {
	t.Helper()
	require.NoError(t, r.in.AwaitAnswered(bounded(t), faults.Watch, 2))
	require.NoError(t, r.in.AwaitAnswered(bounded(t), faults.Txn, 4)) // to enter, in two steps, and a look after each watch
}

// waiterBehind is a rig that waits for a lock held by holder, with both its watches open.
func waiterBehind(t *testing.T, srv *etcdtest.Server, holder *lease.Lock, opts lease.Options, via ...etcdtest.ClientOption) (*lockRig, *attempt, string) {
	t.Helper()
	before := srv.Keys(t, holder.Name()+"/")
	rig := newLockRig(t, srv, opts, via...)
	waiter := goLock(bounded(t), rig.Session, holder.Name())
	rig.awaitWatches(t)
	keys := awaitQueue(t, srv, holder.Name(), len(before)+1)
	for _, key := range keys {
		if !slices.Contains(before, key) {
			return rig, waiter, key
		}
	}
	require.FailNow(t, "the waiter has no key")
	return nil, nil, ""
}

// TestLock_waiterLosesItsPlace is pain 5: a waiter whose lease or key is gone is told at once, not when its turn comes,
// and why.
func TestLock_waiterLosesItsPlace(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rival := newSession(t, srv.Client(t), lease.Options{})
	for name, row := range map[string]struct {
		want lease.Reason
		lose func(t *testing.T, rig *lockRig, key string)
	}{
		"lease revoked": {lease.LeaseGone, func(t *testing.T, rig *lockRig, _ string) {
			t.Helper()
			srv.Revoke(t, rig.leaseID())
		}},
		"key deleted": {lease.KeyDeleted, func(t *testing.T, rig *lockRig, key string) {
			t.Helper()
			require.NoError(t, second2(rig.client.Delete(bounded(t), key)))
		}},
		"key overwritten": {lease.KeyOverwritten, func(t *testing.T, rig *lockRig, key string) {
			t.Helper()
			require.NoError(t, second2(rig.client.Put(bounded(t), key, "mine")))
		}},
		"deadline passed": {lease.DeadlinePassed, func(t *testing.T, rig *lockRig, _ string) {
			t.Helper()
			rig.in.Inject(t, faults.Rule{Fault: faults.LoseRequest, Method: faults.LeaseKeepAlive, Silent: true})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			holder := mustLock(t, rival, name)
			opts := lease.Options{}
			if row.want == lease.DeadlinePassed {
				opts.TTL = faultTTL
			}
			rig, waiter, key := waiterBehind(t, srv, holder, opts)
			begin := time.Now()
			row.lose(t, rig, key)
			l, err := waiter.result(t)
			t.Logf("told after %v", time.Since(begin))
			lostFor(t, err, row.want)
			require.NotErrorIs(t, err, context.Canceled)
			require.Nil(t, l)
			requireHeld(t, srv, holder)
			require.Equal(t, []string{holder.Key()}, awaitQueue(t, srv, name, 1))

			again := goLock(bounded(t), rig.Session, name) // with a new lease where the old one is gone
			awaitQueue(t, srv, name, 2)
			require.NoError(t, holder.Unlock(bounded(t)))
			require.NoError(t, again.granted(t).Unlock(bounded(t)))
			awaitQueue(t, srv, name, 0)
		})
	}
}

// TestLock_turnOfDeadWaiter is pain 1: the lease is revoked while its owner waits, and its watches tell of that only
// together with its turn. It gets no lock, or one that is lost before anybody can do much with it.
func TestLock_turnOfDeadWaiter(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rival := newSession(t, srv.Client(t), lease.Options{})
	holder := mustLock(t, rival, "n")
	rig, waiter, _ := waiterBehind(t, srv, holder, lease.Options{})
	third := goLock(bounded(t), newSession(t, srv.Client(t), lease.Options{}), "n")
	awaitQueue(t, srv, "n", 3)
	told := make(chan struct{})
	news := rig.in.Inject(t, faults.Rule{
		Fault: faults.DelayAnswer, Method: faults.Watch, Until: told, Times: 1,
		Match: func(message any) bool {
			resp, ok := message.(*etcdserverpb.WatchResponse)
			return ok && len(resp.Events) > 0
		},
	})
	srv.Revoke(t, rig.leaseID())
	awaitClosed(t, news.Hit(), "the waiter's watch did not tell")
	waiter.waiting(t)
	require.NoError(t, holder.Unlock(bounded(t)))
	successor := third.granted(t)
	close(told)
	if l, err := waiter.result(t); err != nil {
		lostFor(t, err, lease.LeaseGone)
	} else {
		require.Less(t, l.Token(), successor.Token(), "a fence tells them apart")
		begin := time.Now()
		lostFor(t, awaitDone(t, l), lease.LeaseGone)
		require.Less(t, time.Since(begin), time.Second)
		lostFor(t, l.Unlock(bounded(t)), lease.LeaseGone)
	}
	require.NoError(t, successor.Unlock(bounded(t)))
}

// TestLock_deadlinePassesBeforeAnswer is pain 1 on the other side: the server has granted the lock, but by the time
// that its answer is read the lease cannot be trusted any more.
func TestLock_deadlinePassesBeforeAnswer(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rival := newSession(t, srv.Client(t), lease.Options{})
	forms := map[string]func(*lease.Session, context.Context, string) (*lease.Lock, error){
		"Lock":    (*lease.Session).Lock,
		"TryLock": (*lease.Session).TryLock,
	}
	for form, lock := range forms {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			rig := newLockRig(t, srv, lease.Options{TTL: minTTL})
			mute := rig.in.Inject(t, faults.Rule{Fault: faults.LoseRequest, Method: faults.LeaseKeepAlive, Silent: true})
			ended := awaitState(bounded(t), rig.Session, lease.Lost)
			rig.in.OnAnswer(func(_ string, req, _ any) {
				if isEnter(req) {
					<-ended // as if the process had been paused
				}
			})
			l, err := lock(rig.Session, bounded(t), form)
			lostFor(t, err, lease.DeadlinePassed)
			require.Nil(t, l)
			rig.in.OnAnswer(nil)
			mute.Remove()
			requireFree(t, srv, rival, form)
			require.NoError(t, mustLock(t, rig.Session, form).Unlock(bounded(t)), "the session has healed")
		})
	}
}

// awaitState is a channel that is closed when the session's lease has come to a state.
func awaitState(ctx context.Context, s *lease.Session, want lease.State) <-chan struct{} {
	c := make(chan struct{})
	go func() {
		defer close(c)
		for st := range s.Changes(ctx) {
			if st.State == want {
				return
			}
		}
	}()
	return c
}

// TestLock_middleWaiterGivesUp checks that a waiter who leaves from the middle lets nobody in early: the one behind
// goes on to wait for the one ahead.
func TestLock_middleWaiterGivesUp(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	for name, leave := range map[string]func(*lockRig, context.CancelCauseFunc){
		"cancelled":     func(_ *lockRig, cancel context.CancelCauseFunc) { cancel(errGaveUp) },
		"lease revoked": func(r *lockRig, _ context.CancelCauseFunc) { srv.Revoke(t, r.leaseID()) },
	} {
		t.Run(name, func(t *testing.T) {
			holder := mustLock(t, newSession(t, srv.Client(t), lease.Options{}), name)
			middle := newLockRig(t, srv, lease.Options{})
			ctx, cancel := context.WithCancelCause(bounded(t))
			defer cancel(nil)
			quitter := goLock(ctx, middle.Session, name)
			awaitQueue(t, srv, name, 2)

			last := newLockRig(t, srv, lease.Options{})
			nowOnHolder := make(chan struct{}, 100)
			last.in.OnRequest(func(_ string, req any) {
				if watchesKey(req, holder.Key()) {
					nowOnHolder <- struct{}{}
				}
			})
			waiter := goLock(bounded(t), last.Session, name)
			last.awaitWatches(t)

			leave(middle, cancel)
			_, err := quitter.result(t)
			require.Error(t, err)
			awaitClosed(t, nowOnHolder, "the last does not wait for the holder")
			awaitQueue(t, srv, name, 2)
			waiter.waiting(t)
			requireHeld(t, srv, holder)
			require.NoError(t, holder.Unlock(bounded(t)))
			l := waiter.granted(t)
			require.Greater(t, l.Token(), holder.Token())
			require.NoError(t, l.Unlock(bounded(t)))
			require.Empty(t, srv.Keys(t, name+"/"))
		})
	}
}

// TestLock_watchCompacted is pain 7: while a waiter is cut off the history that its watches would go on from is
// compacted. It is granted the lock all the same, and nothing stale stays.
func TestLock_watchCompacted(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	for name, unlockedMeanwhile := range map[string]bool{"unlocked later": false, "unlocked meanwhile": true} {
		t.Run(name, func(t *testing.T) {
			rival := newSession(t, srv.Client(t), lease.Options{})
			holder := mustLock(t, rival, "n")
			proxy := faults.NewProxy(t, srv.Endpoint())
			rig, waiter, _ := waiterBehind(t, srv, holder, lease.Options{}, etcdtest.Via(proxy.Addr()))
			compacted, anew := make(chan struct{}, 10), make(chan struct{}, 10)
			rig.in.OnAnswer(func(_ string, _, reply any) {
				if resp, ok := reply.(*etcdserverpb.WatchResponse); ok && resp.CompactRevision > 0 {
					compacted <- struct{}{}
				}
			})
			rig.in.OnRequest(func(_ string, req any) {
				if watchesKey(req, holder.Key()) && req.(*etcdserverpb.WatchRequest).GetCreateRequest().StartRevision == 0 {
					anew <- struct{}{}
				}
			})

			proxy.Refuse()
			operator := srv.Client(t)
			for range 3 {
				require.NoError(t, second2(operator.Put(bounded(t), "other", "")))
			}
			if unlockedMeanwhile {
				require.NoError(t, holder.Unlock(bounded(t)))
			}
			srv.Compact(t)
			proxy.Restore()
			if !unlockedMeanwhile {
				awaitClosed(t, compacted, "the watch did not meet the compaction")
				awaitClosed(t, anew, "the waiter does not watch the holder again")
				waiter.waiting(t)
				require.NoError(t, holder.Unlock(bounded(t)))
			}
			l := waiter.granted(t)
			requireHeld(t, srv, l)
			require.Equal(t, []string{l.Key()}, srv.Keys(t, "n/"))
			require.NoError(t, l.Unlock(bounded(t)))
			requireFree(t, srv, rival, "n")
		})
	}
}

// TestLock_watchCut breaks the connection of a waiter again and again, and then hands the lock over.
func TestLock_watchCut(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rival := newSession(t, srv.Client(t), lease.Options{})
	holder := mustLock(t, rival, "n")
	proxy := faults.NewProxy(t, srv.Endpoint())
	rig, waiter, _ := waiterBehind(t, srv, holder, lease.Options{}, etcdtest.Via(proxy.Addr()))
	for range 5 {
		watches := rig.in.Answered(faults.Watch)
		proxy.Cut()
		require.NoError(t, rig.in.AwaitAnswered(bounded(t), faults.Watch, watches+2)) // both come back
		waiter.waiting(t)
	}
	proxy.Cut()
	require.NoError(t, holder.Unlock(bounded(t)))
	l := waiter.granted(t)
	requireHeld(t, srv, l)
	require.NoError(t, l.Unlock(bounded(t)))
	requireFree(t, srv, rival, "n")
}
