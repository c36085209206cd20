package integration_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/lease"
)

// errGaveUp is the cause with which callers in these tests end their contexts.
var errGaveUp = errors.New("the caller gave up")

// fate is what becomes of the caller's context.
type fate string

const (
	alive     fate = "alive"
	cancelled fate = "cancelled" // ends with the very message that meets the fault
	expired   fate = "expired"   // ends a while after that, and every message until then meets the fault
)

// trial is one fault for one caller.
type trial struct {
	fault  faults.Fault
	silent bool
	fate   fate
}

// trials are all ways to lose or delay a message, each with every fate of the caller.
func trials() map[string]trial {
	all := make(map[string]trial)
	for _, f := range []fate{alive, cancelled, expired} {
		for _, fault := range []faults.Fault{faults.LoseRequest, faults.LoseAnswer} {
			all[fault.String()+"/unavailable/"+string(f)] = trial{fault, false, f}
			all[fault.String()+"/silent/"+string(f)] = trial{fault, true, f}
		}
		for _, fault := range []faults.Fault{faults.DelayRequest, faults.DelayAnswer} {
			all[fault.String()+"/"+string(f)] = trial{fault, false, f}
		}
	}
	return all
}

// begin puts the fault to work on the messages that match and returns the caller's context.
func (tr trial) begin(t *testing.T, in *faults.Interceptor, method string, match func(any) bool) (context.Context, *faults.Injection) {
	t.Helper()
	rule := faults.Rule{Fault: tr.fault, Method: method, Match: match, Silent: tr.silent, Times: 1, Delay: time.Hour}
	ctx, cancel := context.WithCancelCause(bounded(t))
	t.Cleanup(func() { cancel(nil) })
	meets := func(then func()) func(any) bool {
		return func(message any) bool {
			hit := match(message)
			if hit {
				then()
			}
			return hit
		}
	}
	switch tr.fate {
	case alive:
		rule.Delay = 50 * time.Millisecond
	case cancelled:
		rule.Match = meets(func() { cancel(errGaveUp) })
	case expired:
		rule.Times = 0
		rule.Match = meets(func() { time.AfterFunc(100*time.Millisecond, func() { cancel(errGaveUp) }) })
	}
	return ctx, in.Inject(t, rule)
}

// check checks what the caller got.
func (tr trial) check(t *testing.T, err error, fault *faults.Injection) {
	t.Helper()
	fault.Remove()
	require.Positive(t, fault.Hits(), "the fault met no message")
	if tr.fate == alive {
		require.NoError(t, err)
		return
	}
	require.ErrorIs(t, err, errGaveUp)
}

// TestLock_enteringLost loses and delays the transaction that enters the queue, in every way. It is pain 6: an answer
// that was lost must not leave a key that blocks everyone for as long as the session lives.
func TestLock_enteringLost(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	operator := srv.Client(t)
	rival := newSession(t, operator, lease.Options{})
	forms := map[string]func(*lease.Session, context.Context, string) (*lease.Lock, error){
		"Lock":    (*lease.Session).Lock,
		"TryLock": (*lease.Session).TryLock,
	}
	for form, lock := range forms {
		for name, tr := range trials() {
			t.Run(form+"/"+name, func(t *testing.T) {
				rig := newLockRig(t, srv, lease.Options{TTL: faultTTL})
				rig.in.OnAnswer(func(_ string, req, _ any) {
					if isEnter(req) { // so that revisions have moved on when it is repeated
						assert.NoError(t, second2(operator.Put(bounded(t), "other", "")))
					}
				})
				ctx, fault := tr.begin(t, rig.in, faults.Txn, isEnter)
				l, err := lock(rig.Session, ctx, t.Name())
				tr.check(t, err, fault)
				if tr.fate == alive {
					require.Equal(t, []string{l.Key()}, srv.Keys(t, t.Name()+"/"), "one attempt is one key")
					requireHeld(t, srv, l)
					_, err = rival.TryLock(bounded(t), t.Name())
					require.ErrorIs(t, err, lease.ErrLocked)
					require.NoError(t, l.Unlock(bounded(t)))
				} else {
					require.Nil(t, l)
				}
				requireFree(t, srv, rival, t.Name())
				require.NotEqual(t, lease.Lost, rig.Status().State, "the lease outlives the attempt")
			})
		}
	}
}

// TestLock_waitingDisturbed loses and delays what a waiter asks: who is ahead, and to be told when that changes.
func TestLock_waitingDisturbed(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rival := newSession(t, srv.Client(t), lease.Options{})
	kinds := map[string]struct {
		method string
		match  func(any) bool
	}{
		"look":  {faults.Txn, isLook},
		"read":  {faults.Txn, func(message any) bool { return isRead(message) && !isLook(message) }}, // of the waiter's own key
		"watch": {faults.Watch, func(any) bool { return true }},
	}
	for kind, k := range kinds {
		for name, tr := range trials() {
			if kind == "watch" && tr.silent && tr.fate == alive {
				continue // a stream that lives on loses no message; one that falls silent altogether is the proxy's case
			}
			if kind == "watch" && tr.fate == alive && tr.fault == faults.DelayAnswer {
				continue // covered by DelayRequest: the watch exists later
			}
			t.Run(kind+"/"+name, func(t *testing.T) {
				holder := mustLock(t, rival, t.Name())
				rig := newLockRig(t, srv, lease.Options{TTL: faultTTL})
				ctx, fault := tr.begin(t, rig.in, k.method, k.match)
				waiter := goLock(ctx, rig.Session, t.Name())
				awaitClosed(t, fault.Hit(), "the fault met no message")
				if tr.fate == alive {
					waiter.waiting(t)
					require.NoError(t, holder.Unlock(bounded(t)))
				}
				l, err := waiter.result(t)
				tr.check(t, err, fault)
				if tr.fate == alive {
					requireHeld(t, srv, l)
					require.Greater(t, l.Token(), holder.Token())
					require.NoError(t, l.Unlock(bounded(t)))
				} else {
					require.Nil(t, l)
					require.Equal(t, []string{holder.Key()}, awaitQueue(t, srv, t.Name(), 1))
					require.NoError(t, holder.Unlock(bounded(t)))
				}
				requireFree(t, srv, rival, t.Name())
			})
		}
	}
}

// TestLock_unlockingLost loses and delays the transaction that leaves the queue, in every way.
func TestLock_unlockingLost(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rival := newSession(t, srv.Client(t), lease.Options{})
	for name, tr := range trials() {
		t.Run(name, func(t *testing.T) {
			rig := newLockRig(t, srv, lease.Options{TTL: faultTTL})
			l := mustLock(t, rig.Session, t.Name())
			ctx, fault := tr.begin(t, rig.in, faults.Txn, isLeave)
			err := l.Unlock(ctx)
			tr.check(t, err, fault)
			require.ErrorIs(t, context.Cause(l.Context()), lease.ErrUnlocked)
			requireFree(t, srv, rival, t.Name())
			if err != nil {
				require.NoError(t, l.Unlock(bounded(t)), "it asks for the confirmation that is missing")
			}
			require.ErrorIs(t, l.Unlock(bounded(t)), lease.ErrUnlocked)
			require.NotEqual(t, lease.Lost, rig.Status().State)
		})
	}
}

// TestSession_grantAndRevokeLost loses and delays the two ends of a lease. A lease that nobody heard of, or that could
// not be revoked, expires by itself, and Close says so.
func TestSession_grantAndRevokeLost(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	every := func(any) bool { return true }
	for name, tr := range trials() {
		t.Run("grant/"+name, func(t *testing.T) {
			in := faults.NewInterceptor(t)
			client := srv.Client(t, etcdtest.Dial(in.DialOptions()...))
			ctx, fault := tr.begin(t, in, faults.LeaseGrant, every)
			s, err := lease.NewSession(ctx, client, resolved(lease.Options{TTL: faultTTL}))
			tr.check(t, err, fault)
			if tr.fate != alive {
				require.Nil(t, s)
				return
			}
			require.NoError(t, mustLock(t, s, "grant").Unlock(bounded(t)))
			require.NoError(t, s.Close(bounded(t)))
		})
		t.Run("revoke/"+name, func(t *testing.T) {
			rig := newLockRig(t, srv, lease.Options{TTL: faultTTL})
			l := mustLock(t, rig.Session, "revoke/"+name)
			id := rig.leaseID()
			ctx, fault := tr.begin(t, rig.in, faults.LeaseRevoke, every)
			err := rig.Close(ctx)
			if tr.fault == faults.LoseAnswer && err == nil {
				tr.fate = alive // the repetition was told in time that there is no such lease: that answer gets through
			}
			tr.check(t, err, fault)
			lostFor(t, context.Cause(l.Context()), lease.SessionClosed)
			if tr.fate == alive {
				require.NotContains(t, srv.Leases(t), id)
				require.Empty(t, srv.Keys(t, l.Key()))
			}
		})
	}
	require.Eventually(t, func() bool { return len(srv.Leases(t)) == 0 }, patience, 20*time.Millisecond)
	require.Empty(t, srv.Keys(t, ""))
}

// TestLock_requestArrivesAfterGivingUp is pain 25: the caller has given up and the server has confirmed that nothing
// is left, and only then the request arrives that was stuck in the network.
func TestLock_requestArrivesAfterGivingUp(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	forms := map[string]func(*lease.Session, context.Context, string) error{
		"Lock":    func(s *lease.Session, ctx context.Context, name string) error { return second(s.Lock(ctx, name)) },
		"TryLock": func(s *lease.Session, ctx context.Context, name string) error { return second(s.TryLock(ctx, name)) },
		"Do": func(s *lease.Session, ctx context.Context, name string) error {
			return s.Do(ctx, name, func(context.Context, fence.Token) error { return errors.New("fn was called") })
		},
	}
	for form, lock := range forms {
		t.Run(form, func(t *testing.T) {
			rig := newLockRig(t, srv, lease.Options{TTL: faultTTL})
			queue := watchQueue(t, srv, "n")
			swept := sweeps(rig)

			ctx, cancel := context.WithCancelCause(bounded(t))
			defer cancel(nil)
			stuck := make(chan struct{})
			rig.in.Inject(t, faults.Rule{
				Fault: faults.LateRequest, Method: faults.Txn, Times: 1, Silent: true, Until: stuck,
				Match: func(message any) bool {
					hit := isEnter(message)
					if hit {
						cancel(errGaveUp)
					}
					return hit
				},
			})
			require.ErrorIs(t, lock(rig.Session, ctx, "n"), errGaveUp)
			awaitClosed(t, swept, "nothing was cleared up")
			require.Empty(t, srv.Keys(t, "n/"))

			close(stuck)
			queue.appears(t)
			arrived := time.Now()
			queue.disappears(t)
			t.Logf("deleted %v after it had arrived; a third of the TTL is %v", time.Since(arrived), faultTTL/3)
			require.Contains(t, srv.Leases(t), rig.leaseID(), "it went by itself, not with the lease")
			requireFree(t, srv, newSession(t, srv.Client(t), lease.Options{}), "n")
		})
	}
}

// TestLock_duplicateArrivesAfterUnlock is pain 25 again: the first request is stuck, its repetition gets the lock, and
// the first one arrives when the lock has been unlocked. The key that it makes is nobody's.
func TestLock_duplicateArrivesAfterUnlock(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rig := newLockRig(t, srv, lease.Options{TTL: faultTTL})
	queue := watchQueue(t, srv, "n")
	stuck := make(chan struct{})
	rig.in.Inject(t, faults.Rule{
		Fault: faults.LateRequest, Method: faults.Txn, Match: isEnter, Times: 1, Until: stuck,
	})

	l := mustLock(t, rig.Session, "n")
	queue.appears(t)
	swept := sweeps(rig)
	require.NoError(t, l.Unlock(bounded(t)))
	queue.disappears(t)
	awaitClosed(t, swept, "nothing was cleared up")

	close(stuck)
	queue.appears(t)
	queue.disappears(t)
	require.Contains(t, srv.Leases(t), rig.leaseID(), "it went by itself, not with the lease")
	requireFree(t, srv, newSession(t, srv.Client(t), lease.Options{}), "n")
}

// TestLock_duplicateArrivesWhileHeld lets the stuck request arrive at a lock that is held: it changes nothing.
func TestLock_duplicateArrivesWhileHeld(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rig := newLockRig(t, srv, lease.Options{TTL: faultTTL})
	stuck := make(chan struct{})
	rig.in.Inject(t, faults.Rule{
		Fault: faults.LateRequest, Method: faults.Txn, Match: isEnter, Times: 1, Until: stuck,
	})
	l := mustLock(t, rig.Session, "n")
	txns := rig.in.Answered(faults.Txn)
	close(stuck)
	require.NoError(t, rig.in.AwaitAnswered(bounded(t), faults.Txn, txns+1))
	requireHeld(t, srv, l)
	require.Equal(t, []string{l.Key()}, srv.Keys(t, "n/"))
	require.NoError(t, l.Unlock(bounded(t)))
	requireFree(t, srv, newSession(t, srv.Client(t), lease.Options{}), "n")
}
