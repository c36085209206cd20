package k8slock_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/election/k8slock"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/hosttest"
)

// A tenure's time counts from the beginning of the call that has begun or renewed it, even if its first requests are
// lost.
func TestLock_localDeadline(t *testing.T) {
	const before, after = 200 * time.Millisecond, 250 * time.Millisecond
	for _, method := range []fakeetcd.Method{fakeetcd.Grant, fakeetcd.KeepAliveOnce} {
		for n := range 2 {
			bubbleOf(t, fmt.Sprintf("%v %d lost", method, n), func(t *testing.T, a *candidate) {
				b := newCandidate(t, a.srv, k8slock.Options{})
				if method == fakeetcd.KeepAliveOnce {
					a.create(t)
					time.Sleep(5 * time.Second)
				}
				if n > 0 {
					a.c.Inject(method, fakeetcd.Fault{Lose: fakeetcd.Request, Times: n})
				}
				a.c.Inject(method, fakeetcd.Fault{Before: before, After: after})
				began := time.Now()
				if method == fakeetcd.KeepAliveOnce {
					a.update(t)
				} else {
					a.create(t)
				}
				require.Equal(t, before+after+time.Duration(n)*timeout/4, time.Since(began))
				work := a.context(t)
				a.c.Cut()

				<-work.Done()
				require.Equal(t, leaseDuration-margin, time.Since(began))
				requireLost(work, t)
				a.requireNoTenure(t)
				require.Equal(t, a.Identity(), b.get(t).HolderIdentity, "nobody else can lead yet")
				time.Sleep(margin + before + timeout/4 + time.Second/2)
				b.create(t)
			})
		}
	}
}

// Other candidates go by the record's duration, so the deadline does too, even if the server grants a longer lease.
func TestLock_localDeadlineOfAShortRecord(t *testing.T) {
	bubble(t, func(t *testing.T, a *candidate) {
		record := a.leaderRecord()
		record.LeaseDurationSeconds = 1
		began := time.Now()
		require.NoError(t, a.Create(t.Context(), record))
		require.Equal(t, 2*time.Second, a.srv.Leases()[0].TTL)
		time.Sleep(time.Second / 2)
		require.NoError(t, a.Update(t.Context(), record))
		<-a.context(t).Done()
		require.Equal(t, 1400*time.Millisecond, time.Since(began))
	})
}

// If the record is deleted and the next call is a Create, the tenure before it ends.
func TestLock_createAfterAnUnseenLoss(t *testing.T) {
	bubble(t, func(t *testing.T, a *candidate) {
		before := a.create(t)
		work := a.context(t)
		a.srv.Delete(key)
		require.Greater(t, a.create(t), before)
		requireLost(work, t)
	})
}

func TestLock_leaseIsGone(t *testing.T) {
	bubble(t, func(t *testing.T, a *candidate) {
		work := a.begins(t)
		require.NoError(t, a.srv.Revoke(leaseOfRecord(a.srv)))
		require.ErrorIs(t, a.Update(t.Context(), a.leaderRecord()), rpctypes.ErrLeaseNotFound)
		requireLost(work, t)
		require.Empty(t, a.srv.Keys(key), "a renewal writes no record without the lease")
	})
}

// A context of a tenure is freed when the context that it was made of has ended, though the tenure goes on.
func TestLock_NewContext_isFreed(t *testing.T) {
	bubble(t, func(t *testing.T, a *candidate) {
		a.create(t)
		type value struct{ _ [64]byte }
		request := func() weak.Pointer[value] {
			held := new(value)
			ctx, cancel := context.WithCancel(context.WithValue(t.Context(), value{}, held))
			defer cancel()
			work, err := a.NewContext(ctx)
			require.NoError(t, err)
			require.Same(t, held, work.Value(value{}))
			return weak.Make(held)
		}
		held := request()
		synctest.Wait()
		runtime.GC()
		require.Nil(t, held.Value())
		a.token(t)
	})
}

// The call that ends a tenure ends its contexts itself, and before it sends a release: after that another candidate may
// lead. Goroutines would end some of so many contexts later.
func TestLock_NewContext_endsBeforeARelease(t *testing.T) {
	bubble(t, func(t *testing.T, a *candidate) {
		var works []context.Context
		begin := func() {
			works = nil
			for range 100 {
				works = append(works, a.context(t))
			}
		}
		late := false
		look := func() {
			late = late || slices.ContainsFunc(works, func(work context.Context) bool { return work.Err() == nil })
		}

		a.create(t)
		begin()
		a.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Match: func(fakeetcd.Call) bool { look(); return true }})
		require.NoError(t, a.Update(t.Context(), released()))

		a.update(t)
		begin()
		a.RecordEvent("stopped leading")
		look()
		require.False(t, late)
		require.ErrorIs(t, context.Cause(works[0]), k8slock.ErrStopped)
	})
}

// Renewals use the streams of earlier ones. If the server is slow, the renewal is hedged over a second stream, which is
// kept too, even if its answer comes after the call.
func TestLock_keepsTheStreamsOfItsRenewals(t *testing.T) {
	for what, tc := range map[string]struct {
		fault fakeetcd.Fault
		want  []string
	}{
		"quick": {want: []string{""}},
		"slow":  {fakeetcd.Fault{After: timeout / 3}, []string{"", ""}},
	} {
		bubbleOf(t, what, func(t *testing.T, a *candidate) {
			a.create(t)
			a.c.Inject(fakeetcd.KeepAliveOnce, tc.fault)
			for range 20 {
				time.Sleep(retryPeriod)
				require.NoError(t, a.Update(t.Context(), a.leaderRecord()))
			}
			require.Equal(t, tc.want, a.c.KeepAliveStreams())
			require.Equal(t, len(tc.want), a.c.OpenKeepAlives())
			a.RecordEvent("stopped leading")
			time.Sleep(timeout)
			require.Zero(t, a.c.OpenKeepAlives())
		})
	}
}

// A stream without an answer is closed after the time of a call, and the next renewal does not use it.
func TestLock_closesASilentStream(t *testing.T) {
	bubble(t, func(t *testing.T, a *candidate) {
		a.create(t)
		a.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer})
		require.NoError(t, a.Update(t.Context(), a.leaderRecord()))
		require.Equal(t, 2, a.c.OpenKeepAlives())
		time.Sleep(timeout)
		synctest.Wait()
		require.Equal(t, 1, a.c.OpenKeepAlives())
		began := time.Now()
		require.NoError(t, a.Update(t.Context(), a.leaderRecord()))
		require.Equal(t, began, time.Now())
		require.Len(t, a.c.KeepAliveStreams(), 2)
	})
}

// If the client's auth token expires during a tenure, the renewal opens another stream, with another token.
func TestLock_renewsAfterItsAuthTokenHasEnded(t *testing.T) {
	bubble(t, func(t *testing.T, a *candidate) {
		a.create(t)
		require.NoError(t, a.Update(t.Context(), a.leaderRecord()))
		a.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Times: 1, Err: rpctypes.ErrGRPCInvalidAuthToken})
		require.NoError(t, a.Update(t.Context(), a.leaderRecord()))
		require.Len(t, a.c.KeepAliveStreams(), 2)
	})
}

// The server's clock goes on while the host is suspended. A tenure whose deadline has passed ends when the host wakes
// up, or half a second later on a host without alarms.
func TestLock_suspendedHost(t *testing.T) {
	for what, late := range map[string]time.Duration{"alarms": 0, "no alarms": time.Second / 2} {
		inBubble(t, what, func(t *testing.T) {
			host, began := hosttest.Start(t, late == 0), time.Now()
			a := newCandidate(t, newServer(t), k8slock.Options{})
			work := a.begins(t)
			time.Sleep(5*time.Second + 1)
			host.Suspend(leaseDuration - margin - 5*time.Second - 2)
			synctest.Wait()
			require.NoError(t, work.Err())

			host.Suspend(1)
			<-work.Done()
			requireLost(work, t)
			require.LessOrEqual(t, time.Since(began), 5*time.Second+1+late)
			a.requireNoTenure(t)

			a.update(t)
			work = a.context(t)
			host.Suspend(leaseDuration)
			require.NoError(t, a.Update(t.Context(), a.leaderRecord()), "a new tenure")
			requireLost(work, t)
		})
	}
}

// A tenure sets its alarm only when its deadline changes, and closes it when it ends.
func TestLock_setsItsAlarmOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := hosttest.Start(t, true)
		a := newCandidate(t, newServer(t), k8slock.Options{})
		a.create(t)
		time.Sleep(leaseDuration - margin - 1)
		synctest.Wait()
		before := host.Alarms()
		require.Equal(t, hosttest.Alarms{Open: 1, Made: 1, Set: 1}, before)
		a.update(t)
		time.Sleep(leaseDuration - margin - 1)
		synctest.Wait()
		require.Equal(t, 1, host.Alarms().Set-before.Set, "at the deadline before the renewal")
		require.NoError(t, a.Update(t.Context(), released()))
		synctest.Wait()
		require.Zero(t, host.Alarms().Open)
	})
}

// If the deadline passes during a renewal, before a timer notices it, the renewal's success comes too late.
func TestLock_renewalAcrossTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := hosttest.Start(t, false)
		a := newCandidate(t, newServer(t), k8slock.Options{})
		work := a.begins(t)
		time.Sleep(leaseDuration - margin - 400*time.Millisecond)
		a.c.Inject(fakeetcd.Txn, fakeetcd.Fault{After: 100 * time.Millisecond})
		time.AfterFunc(50*time.Millisecond, func() { host.Suspend(350 * time.Millisecond) })
		require.ErrorIs(t, a.Update(t.Context(), a.leaderRecord()), k8slock.ErrLost)
		requireLost(work, t)
	})
}
