package k8slock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/leasefence/leasefence/election/k8slock"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// lost are the ways to lose or delay a message.
var lost = map[string]fakeetcd.Fault{
	"request lost":       {Lose: fakeetcd.Request, Err: fakeetcd.ErrUnavailable},
	"answer lost":        {Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable},
	"request swallowed":  {Lose: fakeetcd.Request},
	"answer swallowed":   {Lose: fakeetcd.Answer},
	"request much later": {Before: leaseDuration + 5*time.Second, Late: true},
	"request later":      {Before: timeout + time.Second, Late: true},
	"request cancelled":  {Before: timeout + time.Second},
}

// eachLost runs a test for each fault in lost and each of the methods.
func eachLost(t *testing.T, test func(*testing.T, *candidate, fakeetcd.Method, fakeetcd.Fault), methods ...fakeetcd.Method) {
	t.Helper()
	for what, fault := range lost {
		for _, method := range methods {
			bubbleOf(t, what+" "+method.String(), func(t *testing.T, a *candidate) { test(t, a, method, fault) })
		}
	}
}

// An acquisition whose messages are all lost is undone, whatever the server did.
func TestLock_acquisitionThatFailsIsUndone(t *testing.T) {
	eachLost(t, func(t *testing.T, a *candidate, method fakeetcd.Method, fault fakeetcd.Fault) {
		b := newCandidate(t, a.srv, k8slock.Options{})
		restore := a.c.Inject(method, fault)
		began := time.Now()
		require.ErrorIs(t, a.Create(t.Context(), a.leaderRecord()), context.DeadlineExceeded)
		require.LessOrEqual(t, time.Since(began), timeout)
		restore()
		a.requireNoTenure(t)
		synctest.Wait() // for the revocation
		require.Empty(t, a.srv.Keys(key))
		first := b.create(t)

		for range 3 { // late requests arrive in this time
			time.Sleep(leaseDuration - timeout)
			b.update(t)
		}
		require.Equal(t, first, b.token(t))
		require.Len(t, a.srv.Leases(), 1, "a grant whose answer was lost has expired")
	}, fakeetcd.Grant, fakeetcd.Txn)
}

// An acquisition or a renewal of which one or two messages are lost succeeds, and writes once. A renewal whose messages are
// all lost fails, and the next one renews.
func TestLock_goesThroughLostMessages(t *testing.T) {
	const all = 0
	for _, renews := range []bool{false, true} {
		methods, times := []fakeetcd.Method{fakeetcd.Grant, fakeetcd.Txn}, []int{1, 2}
		if renews {
			methods, times = []fakeetcd.Method{fakeetcd.KeepAliveOnce, fakeetcd.Txn}, []int{1, 2, all}
		}
		eachLost(t, func(t *testing.T, _ *candidate, method fakeetcd.Method, fault fakeetcd.Fault) {
			for _, fault.Times = range times {
				a := newCandidate(t, newServer(t), k8slock.Options{})
				call, written := a.Create, int64(0)
				if renews {
					a.create(t)
					time.Sleep(5 * time.Second)
					call, written = a.Update, 1
				}
				before := len(a.c.Calls(method))
				restore := a.c.Inject(method, fault)
				time.AfterFunc(timeout/8, func() { a.srv.Put("other", "") }) // whose revision must not become the token
				began := time.Now()
				err := call(t.Context(), a.leaderRecord())
				require.LessOrEqual(t, time.Since(began), timeout)
				if fault.Times == all {
					require.Error(t, err)
					require.LessOrEqual(t, len(a.c.Calls(method))-before, 12, "no retries without a pause")
					restore()
					a.update(t)
					written = a.srv.Keys(key)[0].Version - 1
				} else {
					require.NoError(t, err)
					require.LessOrEqual(t, len(a.c.Calls(method))-before, 3)
				}
				token, work := a.token(t), a.context(t)
				require.Equal(t, fence.Token(a.srv.Keys(key)[0].CreateRevision), token)

				for range 4 {
					written++
					require.Equal(t, written, a.srv.Keys(key)[0].Version)
					time.Sleep(leaseDuration - margin - timeout) // late requests arrive in this time
					require.NoError(t, a.Update(t.Context(), a.leaderRecord()))
				}
				require.Equal(t, token, a.token(t))
				require.NoError(t, work.Err())
				require.Len(t, a.srv.Leases(), 1, "a grant whose answer was lost has expired")
				require.Equal(t, a.srv.Leases()[0].ID, leaseOfRecord(a.srv))
			}
		}, methods...)
	}
}

// If a failed acquisition cannot be undone either, its record looks like another process's until it expires.
func TestLock_acquisitionThatCannotBeUndone(t *testing.T) {
	bubble(t, func(t *testing.T, a *candidate) {
		a.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable})
		a.c.Inject(fakeetcd.Revoke, fakeetcd.Fault{Lose: fakeetcd.Request})
		began := time.Now()
		require.Error(t, a.Create(t.Context(), a.leaderRecord()))
		require.Equal(t, timeout, time.Since(began), "the call does not wait for the revocation")
		time.Sleep(timeout) // until the revocation has given up
		a.c.Reset()
		a.requireNoTenure(t)
		require.Equal(t, a.Identity()+" (another process)", a.get(t).HolderIdentity)

		time.Sleep(leaseDuration)
		a.create(t)
	})
}

func TestLock_releaseGoesThroughLostMessages(t *testing.T) {
	eachLost(t, func(t *testing.T, a *candidate, method fakeetcd.Method, fault fakeetcd.Fault) {
		b := newCandidate(t, a.srv, k8slock.Options{})
		token := a.create(t)
		fault.Times = 1
		a.c.Inject(method, fault)
		require.Equal(t, a.Identity(), a.get(t).HolderIdentity)
		require.NoError(t, a.Update(t.Context(), released()))
		a.requireNoTenure(t)
		require.EqualValues(t, 2, a.srv.Keys(key)[0].Version)
		b.update(t)
		require.Greater(t, b.token(t), token)
	}, fakeetcd.Get, fakeetcd.Txn)
}

// If a record was written between two attempts, its number says whether it is the caller's own. The identity does not.
func TestLock_conflictBetweenTwoAttempts(t *testing.T) {
	for what, lose := range map[string]fakeetcd.Message{"request": fakeetcd.Request, "answer": fakeetcd.Answer} {
		setup := func(t *testing.T) (srv *fakeetcd.Server, a, b *candidate) {
			t.Helper()
			srv = newServer(t)
			opts := k8slock.Options{Identity: "host"}
			return srv, newCandidate(t, srv, opts), newCandidate(t, srv, opts)
		}
		meanwhile := func(a *candidate, other func()) {
			a.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Lose: lose, Times: 1})
			time.AfterFunc(timeout/8, other)
		}
		inBubble(t, "acquisition "+what, func(t *testing.T) {
			srv, a, b := setup(t)
			meanwhile(a, func() {
				srv.Delete(key)
				b.create(t)
			})
			require.True(t, apierrors.IsAlreadyExists(a.Create(t.Context(), a.leaderRecord())))
			synctest.Wait() // for the revocation
			a.requireNoTenure(t)
			b.token(t)
			require.Len(t, srv.Leases(), 1)
		})
		inBubble(t, "renewal "+what, func(t *testing.T) {
			srv, a, b := setup(t)
			token := a.create(t)
			work := a.context(t)
			meanwhile(a, func() { b.update(t) })
			require.True(t, apierrors.IsConflict(a.Update(t.Context(), a.leaderRecord())))
			require.Equal(t, "host (another process)", a.get(t).HolderIdentity)
			requireLost(work, t)
			a.requireNoTenure(t)
			require.Greater(t, b.token(t), token)
			require.EqualValues(t, b.token(t), srv.Keys(key)[0].ModRevision)
		})
	}
}

// A record that an earlier call has written is no renewal of this call: others may have seen it before this call
// renewed the lease, and they count its duration from then.
func TestLock_writeOfAnEarlierCallIsNoRenewal(t *testing.T) {
	for what, fault := range map[string]fakeetcd.Fault{
		"answer lost":  {Lose: fakeetcd.Answer},
		"request late": {Before: timeout + time.Second, Late: true},
	} {
		bubbleOf(t, what, func(t *testing.T, a *candidate) {
			began := time.Now()
			work := a.begins(t)
			restore := a.c.Inject(fakeetcd.Txn, fault)
			require.Error(t, a.Update(t.Context(), a.leaderRecord()))
			restore()
			time.Sleep(timeout)
			require.EqualValues(t, 2, a.srv.Keys(key)[0].Version)
			require.True(t, apierrors.IsConflict(a.Update(t.Context(), a.leaderRecord())))
			<-work.Done()
			require.Equal(t, leaseDuration-margin, time.Since(began))
		})
	}
}

// Calls are bounded by Options.Timeout and by a quarter of the record's duration.
func TestLock_callsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newCandidate(t, newServer(t), k8slock.Options{Timeout: 3 * time.Second})
		a.create(t)
		a.c.Cut()
		took := func(call func() error) time.Duration {
			began := time.Now()
			require.ErrorIs(t, call(), context.DeadlineExceeded)
			return time.Since(began)
		}
		require.Equal(t, 3*time.Second, took(func() error { _, _, err := a.Get(t.Context()); return err }))
		require.Equal(t, 3*time.Second, took(func() error { return a.Update(t.Context(), a.leaderRecord()) }))
		record := a.leaderRecord()
		record.LeaseDurationSeconds = 4
		require.Equal(t, time.Second, took(func() error { return a.Create(t.Context(), record) }))
		require.Equal(t, 3*time.Second, took(func() error { return a.Update(t.Context(), released()) }))
	})
}

// While the elector leads, no call outlasts the tenure, so that the elector stops in time.
func TestLock_callsEndWithTheTenure(t *testing.T) {
	bubble(t, func(t *testing.T, a *candidate) {
		began := time.Now()
		a.create(t)
		a.RecordEvent("became leader")
		const left = timeout / 4
		time.Sleep(leaseDuration - margin - left)
		a.c.Cut()
		_, _, err := a.Get(t.Context())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, leaseDuration-margin, time.Since(began))
		sent := len(a.c.Calls(fakeetcd.Any))
		_, _, err = a.Get(t.Context())
		require.ErrorIs(t, err, k8slock.ErrLost)
		require.ErrorIs(t, a.Update(t.Context(), released()), k8slock.ErrLost)
		require.Equal(t, leaseDuration-margin, time.Since(began))
		require.Len(t, a.c.Calls(fakeetcd.Any), sent, "nothing is sent")
	})
}

// Concurrent calls run one after the other, and the wait for its turn ends with a call's context.
func TestLock_concurrentCalls(t *testing.T) {
	bubble(t, func(t *testing.T, a *candidate) {
		token := a.create(t)
		for range 8 {
			go func() {
				for range 20 {
					_, _, _ = a.Get(t.Context())
					if err := a.Update(t.Context(), a.leaderRecord()); err != nil {
						t.Errorf("update: %v", err)
					}
					if got, ok := a.Token(); !ok || got != token {
						t.Errorf("token %v, %v", got, ok)
					}
				}
			}()
		}
		synctest.Wait()

		a.c.Inject(fakeetcd.Get, fakeetcd.Fault{Before: 400 * time.Millisecond})
		go func() { _, _, _ = a.Get(t.Context()) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		began := time.Now()
		require.ErrorIs(t, a.Update(ctx, a.leaderRecord()), context.DeadlineExceeded)
		require.Equal(t, 200*time.Millisecond, time.Since(began))
		time.Sleep(time.Second)
	})
}

// A short call too has time for a second attempt at each of its requests.
func TestLock_shortCallsGoThroughLostMessages(t *testing.T) {
	bubble(t, func(t *testing.T, a *candidate) {
		record := a.leaderRecord()
		record.LeaseDurationSeconds = 1
		for _, method := range []fakeetcd.Method{fakeetcd.Grant, fakeetcd.KeepAliveOnce, fakeetcd.Txn} {
			a.c.Inject(method, fakeetcd.Fault{Lose: fakeetcd.Request, Times: 1})
		}
		began := time.Now()
		require.NoError(t, a.Create(t.Context(), record))
		require.Less(t, time.Since(began), time.Second/4)
		a.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Lose: fakeetcd.Request, Times: 1})
		began = time.Now()
		require.NoError(t, a.Update(t.Context(), record))
		require.Less(t, time.Since(began), time.Second/4)
	})
}

// An acquisition does not wait until the lease of the tenure before is revoked.
func TestLock_acquisitionDoesNotWaitForAnOldLease(t *testing.T) {
	bubble(t, func(t *testing.T, a *candidate) {
		a.create(t)
		require.NoError(t, a.Update(t.Context(), released()))
		a.get(t)
		a.c.Inject(fakeetcd.Revoke, fakeetcd.Fault{Lose: fakeetcd.Request})
		a.c.Inject(fakeetcd.Txn, fakeetcd.Fault{After: timeout / 8})
		began := time.Now()
		require.NoError(t, a.Update(t.Context(), a.leaderRecord()))
		require.Equal(t, timeout/8, time.Since(began))
		a.c.Reset()
		time.Sleep(leaseDuration - margin)
		require.NoError(t, a.Update(t.Context(), a.leaderRecord()))
		time.Sleep(margin + time.Second)
		require.Len(t, a.srv.Leases(), 1, "the old lease has expired")
	})
}
