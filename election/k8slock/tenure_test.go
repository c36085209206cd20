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
)

// A tenure's time counts from the beginning of the call that has begun or renewed it, even if its first requests are
// lost.
func TestLock_localDeadline(t *testing.T) {
	const before, after = 200 * time.Millisecond, 250 * time.Millisecond
	for _, method := range []fakeetcd.Method{fakeetcd.Grant, fakeetcd.KeepAliveOnce} {
		for n := range 2 {
			inBubble(t, fmt.Sprintf("%v %d lost", method, n), func(t *testing.T) {
				a, b := newPair(t)
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
	synctest.Test(t, func(t *testing.T) {
		a := newCandidate(t, newServer(t), k8slock.Options{})
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
	synctest.Test(t, func(t *testing.T) {
		a := newCandidate(t, newServer(t), k8slock.Options{})
		before := a.create(t)
		work := a.context(t)
		a.srv.Delete(key)
		require.Greater(t, a.create(t), before)
		requireLost(work, t)
	})
}

func TestLock_leaseIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newCandidate(t, newServer(t), k8slock.Options{})
		work := a.begins(t)
		require.NoError(t, a.srv.Revoke(leaseOfRecord(a.srv)))
		require.ErrorIs(t, a.Update(t.Context(), a.leaderRecord()), rpctypes.ErrLeaseNotFound)
		requireLost(work, t)
		require.Empty(t, a.srv.Keys(key), "a renewal writes no record without the lease")
	})
}

// A context of a tenure is freed when the context that it was made of has ended, though the tenure goes on.
func TestLock_NewContext_isFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newCandidate(t, newServer(t), k8slock.Options{})
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
	synctest.Test(t, func(t *testing.T) {
		a := newCandidate(t, newServer(t), k8slock.Options{})
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
