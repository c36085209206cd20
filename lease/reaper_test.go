package lease_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// lateFor is how long a request is taken to be still on its way.
const lateFor = 20 * time.Minute

// early is when a key that was given up a second after the beginning has been looked for 100 ms and a second after that.
// From then on it is every third of the TTL.
const early = time.Second + 100*time.Millisecond + time.Second

// P4, pain 6: the request to enter arrives when its caller has long given up. The key appears, blocks for less than a
// third of the TTL, and goes.
func TestReaper_deletesWhatAppearsLate(t *testing.T) {
	for name, tc := range map[string]struct{ arrives, found time.Duration }{
		"at once":          {time.Second + 3*time.Millisecond, time.Second + 100*time.Millisecond},
		"soon":             {1500 * time.Millisecond, early},
		"later":            {3 * time.Second, early + third},
		"after two rounds": {27 * time.Second, early + 3*third},
		"after 15 minutes": {15*time.Minute + 5*time.Second, early + 91*third},
	} {
		for how, take := range map[string]func(*lease.Session, context.Context, string) (*lease.Lock, error){
			"Lock": (*lease.Session).Lock, "TryLock": (*lease.Session).TryLock,
		} {
			t.Run(how+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					e := start(t, lease.Options{})
					other := e.join(t)
					e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Before: tc.arrives, Late: true})
					_, err := take(e.s, timeout(t, time.Second), "a")
					require.ErrorIs(t, err, context.DeadlineExceeded)
					require.Equal(t, time.Second, e.now())
					e.at(tc.arrives - 1)
					require.Empty(t, e.keys("a"))
					e.at(tc.arrives)
					require.Len(t, e.keys("a"), 1)
					_, err = other.s.TryLock(t.Context(), "a")
					require.ErrorIs(t, err, lease.ErrLocked)
					next := other.wait(t.Context(), "a")
					got := receive(t, next)
					require.NoError(t, got.err)
					require.Equal(t, tc.found, got.at)
					require.Equal(t, []string{got.lock.Key()}, e.keys("a"))
					require.Equal(t, lease.Held, e.s.Status().State)
				})
			})
		}
	}
}

// However often something is added meanwhile: that is no reason to look later.
func TestReaper_looksAgainWhileOthersFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{})
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Before: 3 * time.Second, Late: true})
		_, err := e.s.Lock(timeout(t, time.Second), "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		e.join(t).lock(t, "b")
		for e.now() < early+third {
			_, err := e.s.Lock(timeout(t, time.Second), "b")
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		synctest.Wait()
		require.Empty(t, e.keys("a"))
	})
}

// A duplicate of the request to enter that comes after Unlock enters again.
func TestReaper_deletesALateDuplicateAfterUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const arrives = 18 * time.Second
		e := start(t, lease.Options{})
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Before: arrives, Late: true})
		l := e.lock(t, "a")
		require.InDelta(t, attempt, e.now(), float64(25*time.Millisecond))
		e.at(6 * time.Second)
		require.NoError(t, l.Unlock(t.Context()))
		e.at(arrives)
		require.Equal(t, []string{l.Key()}, e.keys("a"))
		e.at(6*time.Second + early - time.Second + 2*third)
		require.Empty(t, e.keys("a"))
	})
}

// A duplicate that comes during the hold changes nothing.
func TestReaper_leavesAHeldLockAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{})
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Before: 18 * time.Second, Late: true})
		l := e.lock(t, "a")
		kv, sent := e.srv.Keys("a")[0], len(e.writes())
		e.at(time.Minute)
		requireLive(t, l)
		require.Equal(t, kv, e.srv.Keys("a")[0])
		require.Len(t, e.writes(), sent)
		require.NoError(t, l.Unlock(t.Context()))
	})
}

// What can still arrive is looked for soon, and every third of the TTL for 20 minutes, and no longer.
func TestReaper_endsAfter20Minutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{})
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Request})
		_, err := e.s.Lock(timeout(t, time.Second), "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		e.at(2 * time.Hour)
		sent := e.sent(fakeetcd.Txn)[1:]
		require.Equal(t, []time.Duration{time.Second, time.Second + 100*time.Millisecond, early}, sent[:3])
		for i, at := range sent[3:] {
			require.Equal(t, third, at-sent[2+i])
		}
		require.Equal(t, early+lateFor, sent[len(sent)-1])

		// The reaper begins again when there is something to do.
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer})
		_, err = e.s.Lock(timeout(t, time.Second), "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		synctest.Wait()
		require.Empty(t, e.keys("a"))
		e.at(4 * time.Hour)
		require.Len(t, e.sent(fakeetcd.Txn), 2*(1+len(sent)))
	})
}

// A lease takes its keys with it, so nothing is left to look for.
func TestReaper_endsWithTheLease(t *testing.T) {
	for name, tc := range map[string]struct {
		lose func(*env)
		last time.Duration // no request to delete is later than this
	}{
		"revoked":         {func(e *env) { _ = e.srv.Revoke(e.s.Status().LeaseID) }, third},
		"deadline passed": {func(e *env) { e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Lose: fakeetcd.Request}) }, 3*ttl + 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := start(t, lease.Options{})
				e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Request})
				_, err := e.s.Lock(timeout(t, time.Second), "a")
				require.ErrorIs(t, err, context.DeadlineExceeded)
				e.at(2 * time.Second)
				tc.lose(e)
				e.at(time.Hour)
				sent := e.sent(fakeetcd.Txn)
				require.LessOrEqual(t, sent[len(sent)-1], tc.last)
				require.Equal(t, lease.Lost, e.s.Status().State)
			})
		})
	}
}

// After a cut nothing is given up: the deletion is repeated until the server has confirmed it.
func TestReaper_outlastsACut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{TTL: time.Hour})
		other := e.join(t)
		theirs := other.lock(t, "theirs")
		l := e.lock(t, "a")
		e.at(time.Second)
		next := e.wait(timeout(t, time.Second), "theirs")
		e.c.Cut()
		require.ErrorIs(t, receive(t, next).err, context.DeadlineExceeded)
		require.ErrorIs(t, l.Unlock(timeout(t, time.Second)), context.DeadlineExceeded)
		e.at(18 * time.Minute)
		require.Len(t, e.keys(""), 3)
		e.c.Restore()
		require.NoError(t, e.srv.Await(timeout(t, attempt+time.Second), func() bool { return len(e.keys("")) == 1 }))
		requireLive(t, theirs)
	})
}

// P7: a key under the same name that is not on our lease is not ours.
func TestReaper_deletesNobodyElsesKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{})
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer})
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Before: 5 * time.Second}) // the first sweep
		_, err := e.s.Lock(timeout(t, time.Second), "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		key := e.keys("a")[0]
		require.True(t, e.srv.Delete(key))
		e.srv.Put(key, "somebody else's")
		e.at(time.Hour)
		require.Equal(t, []string{key}, e.keys("a"))
	})
}

// queueBehind has other hold n names and e wait for each of them, so that each waiter has a key.
func (e *env) queueBehind(ctx context.Context, t *testing.T, other *env, n int) <-chan acquired {
	t.Helper()
	got := make(chan acquired, n)
	for i := range n {
		name := fmt.Sprintf("a/%d", i)
		other.lock(t, name) //nolint:contextcheck // ctx is for those who wait
		go func() {
			l, err := e.s.Lock(ctx, name)
			got <- acquired{l, err, e.now()}
		}()
	}
	synctest.Wait()
	require.Len(t, e.keys("a/"), 2*n)
	return got
}

// Hundreds of waiters that give up together leave in few transactions, each within the server's limit.
func TestReaper_deletesManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiters = 300
		e := start(t, lease.Options{})
		l := e.lock(t, "b")
		mine := errors.New("mine")
		ctx, cancel := context.WithCancelCause(t.Context())
		got := e.queueBehind(ctx, t, e.join(t), waiters)
		before := len(e.writes())
		e.c.Cut()
		cancel(mine)
		for range waiters {
			require.ErrorIs(t, receive(t, got).err, mine)
		}
		e.c.Restore()
		synctest.Wait()
		require.Len(t, e.keys("a/"), waiters)
		require.Zero(t, e.now())
		requireLive(t, l)
		sweeps := e.writes()[before:]
		for _, call := range sweeps {
			require.NoError(t, call.Err)
		}
		require.LessOrEqual(t, len(sweeps), waiters/40+2)
		e.at(time.Hour)
		require.Len(t, e.writes(), before+len(sweeps))
	})
}

// A refused attempt is known to have left nothing.
func TestReaper_isNotAskedAfterARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{})
		l := e.lock(t, "a")
		_, err := e.s.TryLock(t.Context(), "a")
		require.ErrorIs(t, err, lease.ErrLocked)
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Err: errDenied})
		_, err = e.s.TryLock(t.Context(), "b")
		require.Error(t, err)
		n := len(e.writes())
		e.at(time.Minute)
		require.Len(t, e.writes(), n)
		requireLive(t, l)
	})
}

// A server that takes fewer operations in a transaction than is usual gets smaller ones.
func TestReaper_learnsTheServersLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiters, limit = 100, 16
		e := start(t, lease.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		got := e.queueBehind(ctx, t, e.join(t), waiters)
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Err: rpctypes.ErrGRPCTooManyOps, Match: func(call fakeetcd.Call) bool {
			return len(call.Request.(*pb.TxnRequest).Success) > limit
		}})
		e.c.Cut()
		cancel()
		for range waiters {
			require.ErrorIs(t, receive(t, got).err, context.Canceled)
		}
		e.c.Restore()
		synctest.Wait()
		refused := slices.DeleteFunc(e.c.Calls(fakeetcd.Txn), func(call fakeetcd.Call) bool { return call.Err == nil })
		require.NotEmpty(t, refused)
		require.LessOrEqual(t, len(refused), 2, "at most 40 and 20")
		require.Len(t, e.keys("a/"), waiters)
		require.Zero(t, e.now())
	})
}
