package k8slock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/leasefence/leasefence/election/k8slock"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// A lost message of an acquisition: it has not happened, whatever the server did.
func TestLock_acquisitionThatFailsIsUndone(t *testing.T) {
	faults := map[string]fakeetcd.Fault{
		"request lost":       {Lose: fakeetcd.Request, Err: fakeetcd.ErrUnavailable},
		"answer lost":        {Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable},
		"request swallowed":  {Lose: fakeetcd.Request},
		"answer swallowed":   {Lose: fakeetcd.Answer},
		"request much later": {Before: leaseDuration + 5*time.Second, Late: true},
		"request later":      {Before: timeout + time.Second, Late: true},
	}
	for what, fault := range faults {
		for _, method := range []fakeetcd.Method{fakeetcd.Grant, fakeetcd.Txn} {
			t.Run(what+" "+method.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					srv := newServer(t)
					a, b := newCandidate(t, srv, k8slock.Options{}), newCandidate(t, srv, k8slock.Options{})
					fault.Times = 1
					a.c.Inject(method, fault)
					began := time.Now()
					require.Error(t, a.Create(t.Context(), a.leaderRecord()))
					require.LessOrEqual(t, time.Since(began), timeout)
					a.requireNoTenure(t)
					require.Empty(t, srv.Keys(key))
					first := b.create(t)

					for range 3 { // a late request comes meanwhile
						time.Sleep(leaseDuration - timeout)
						b.update(t)
					}
					require.Equal(t, first, b.token(t))
					require.Len(t, srv.Leases(), 1, "a grant whose answer was lost has expired")
				})
			})
		}
	}
}

// If the acquisition cannot be undone either, its record is nobody's until it expires.
func TestLock_acquisitionThatCannotBeUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		a := newCandidate(t, srv, k8slock.Options{})
		a.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable, Times: 1})
		a.c.Inject(fakeetcd.Revoke, fakeetcd.Fault{Lose: fakeetcd.Request, Times: 1})
		began := time.Now()
		require.Error(t, a.Create(t.Context(), a.leaderRecord()))
		require.Equal(t, timeout, time.Since(began), "the clean-up is bounded")
		a.requireNoTenure(t)
		require.Equal(t, a.Identity()+" (another process)", a.get(t).HolderIdentity)

		time.Sleep(leaseDuration)
		a.create(t)
	})
}

// A cancelled acquisition leaves nothing.
func TestLock_acquisitionThatIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		a := newCandidate(t, srv, k8slock.Options{})
		a.c.Inject(fakeetcd.Txn, fakeetcd.Fault{After: time.Second, Times: 1})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		require.ErrorIs(t, a.Create(ctx, a.leaderRecord()), context.DeadlineExceeded)
		require.Empty(t, srv.Leases())
		require.Empty(t, srv.Keys(key))
	})
}

func TestLock_renewalWhoseMessagesAreLost(t *testing.T) {
	faults := map[string]fakeetcd.Fault{
		"request lost":      {Lose: fakeetcd.Request, Err: fakeetcd.ErrUnavailable},
		"answer lost":       {Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable},
		"answer swallowed":  {Lose: fakeetcd.Answer},
		"request later":     {Before: timeout + time.Second, Late: true},
		"request cancelled": {Before: timeout + time.Second},
	}
	for what, fault := range faults {
		for _, method := range []fakeetcd.Method{fakeetcd.KeepAliveOnce, fakeetcd.Txn} {
			t.Run(what+" "+method.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					srv := newServer(t)
					a := newCandidate(t, srv, k8slock.Options{})
					token, lease := a.create(t), leaseOfRecord(srv)
					work := a.context(t)
					fault.Times = 1
					a.c.Inject(method, fault)
					require.Error(t, a.Update(t.Context(), a.leaderRecord()))
					require.Len(t, a.c.Calls(fakeetcd.KeepAliveOnce), 1, "it is not repeated in a loop")

					a.update(t)
					time.Sleep(2 * time.Second) // a late request comes now
					a.update(t)
					require.Equal(t, token, a.token(t))
					require.Equal(t, lease, leaseOfRecord(srv))
					require.NoError(t, work.Err())
				})
			})
		}
	}
}

// A renewal whose answer was lost does not extend the tenure: the record's duration counts from it for others only.
func TestLock_localDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		a, b := newCandidate(t, srv, k8slock.Options{}), newCandidate(t, srv, k8slock.Options{})
		a.create(t)
		work := a.context(t)
		time.Sleep(5 * time.Second)
		a.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Before: 700 * time.Millisecond, After: 800 * time.Millisecond, Times: 1})
		sent := time.Now()
		a.update(t)
		require.Equal(t, 1500*time.Millisecond, time.Since(sent))
		a.c.Cut()

		<-work.Done()
		require.Equal(t, leaseDuration-margin, time.Since(sent), "counted from the sending of the renewal of the lease")
		requireLost(work, t)
		a.requireNoTenure(t)
		require.Equal(t, a.Identity(), b.get(t).HolderIdentity, "nobody else can lead yet")
		time.Sleep(margin + 700*time.Millisecond + time.Second/2)
		b.create(t)
	})
}

// Others go by the record's duration, also where the server grants the lease more.
func TestLock_localDeadlineOfAShortRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		a := newCandidate(t, srv, k8slock.Options{})
		record := a.leaderRecord()
		record.LeaseDurationSeconds = 1
		began := time.Now()
		require.NoError(t, a.Create(t.Context(), record))
		require.Equal(t, 2*time.Second, srv.Leases()[0].TTL)
		time.Sleep(time.Second / 2)
		require.NoError(t, a.Update(t.Context(), record))
		<-a.context(t).Done()
		require.Equal(t, 1400*time.Millisecond, time.Since(began))
	})
}

// The renewal of the lease alone counts for nothing: others go by changes of the record.
func TestLock_renewalsOfTheLeaseAloneDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		a := newCandidate(t, srv, k8slock.Options{})
		began := time.Now()
		a.create(t)
		work := a.context(t)
		a.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Err: fakeetcd.ErrUnavailable})
		for work.Err() == nil {
			_ = a.Update(t.Context(), a.leaderRecord())
			time.Sleep(time.Second)
			synctest.Wait()
		}
		require.Equal(t, leaseDuration-margin, time.Since(began))
		require.NotEmpty(t, srv.Keys(key))
	})
}

// An answer that arrives after the deadline revives nothing.
func TestLock_lateAnswerIsNoSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		a := newCandidate(t, srv, k8slock.Options{})
		a.create(t)
		work := a.context(t)
		time.Sleep(leaseDuration - margin - time.Second)
		a.c.Inject(fakeetcd.Txn, fakeetcd.Fault{After: time.Second + 10*time.Millisecond, Times: 1})
		require.ErrorIs(t, a.Update(t.Context(), a.leaderRecord()), k8slock.ErrLost)
		requireLost(work, t)
		require.Equal(t, a.Identity(), a.get(t).HolderIdentity, "it is still this candidate's to release")
		require.NoError(t, a.Update(t.Context(), released()))
	})
}

// The record goes and the next call is a Create: the tenure before it is over.
func TestLock_createAfterAnUnseenLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		a := newCandidate(t, srv, k8slock.Options{})
		before := a.create(t)
		work := a.context(t)
		srv.Delete(key)
		require.Greater(t, a.create(t), before)
		requireLost(work, t)
	})
}

func TestLock_leaseIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		a := newCandidate(t, srv, k8slock.Options{})
		a.create(t)
		work := a.context(t)
		require.NoError(t, srv.Revoke(leaseOfRecord(srv)))
		require.ErrorIs(t, a.Update(t.Context(), a.leaderRecord()), rpctypes.ErrLeaseNotFound)
		requireLost(work, t)
		require.Empty(t, srv.Keys(key), "a renewal writes no record without the lease")
	})
}

// The lease goes between its renewal and the write: nothing is written.
func TestLock_leaseGoesInTheMiddleOfARenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		a := newCandidate(t, srv, k8slock.Options{})
		a.create(t)
		work := a.context(t)
		lease := leaseOfRecord(srv)
		a.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Before: time.Second, Times: 1})
		time.AfterFunc(time.Second/2, func() { _ = srv.Revoke(lease) })
		require.True(t, apierrors.IsConflict(a.Update(t.Context(), a.leaderRecord())))
		_, _, err := a.Get(t.Context())
		require.True(t, apierrors.IsNotFound(err))
		requireLost(work, t)
		require.Empty(t, srv.Keys(key))
	})
}

// The same in the middle of an acquisition.
func TestLock_leaseGoesInTheMiddleOfAnAcquisition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		a := newCandidate(t, srv, k8slock.Options{})
		a.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Before: time.Second, Times: 1})
		time.AfterFunc(time.Second/2, func() { _ = srv.Revoke(srv.Leases()[0].ID) })
		require.ErrorIs(t, a.Create(t.Context(), a.leaderRecord()), rpctypes.ErrLeaseNotFound)
		a.requireNoTenure(t)
	})
}

// Calls are bounded by the option and by a quarter of the record's duration.
func TestLock_callsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		a := newCandidate(t, srv, k8slock.Options{Timeout: 3 * time.Second})
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
		require.Equal(t, time.Second, took(func() error { return a.Update(t.Context(), record) }))
		require.Equal(t, 3*time.Second, took(func() error { return a.Update(t.Context(), released()) }))
	})
}

// Calls of several goroutines take turns, and the wait for a turn ends with the context.
func TestLock_concurrentCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		a := newCandidate(t, srv, k8slock.Options{})
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

		a.c.Inject(fakeetcd.Get, fakeetcd.Fault{Before: time.Second})
		go func() { _, _, _ = a.Get(t.Context()) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		began := time.Now()
		require.ErrorIs(t, a.Update(ctx, a.leaderRecord()), context.DeadlineExceeded)
		require.Equal(t, time.Second/2, time.Since(began))
		time.Sleep(time.Second)
	})
}
