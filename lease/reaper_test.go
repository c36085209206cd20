package lease_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// lateFor is how long a request may still be on its way.
const lateFor = 20 * time.Minute

// looks are the times at which the reaper looks for a key that was given up at 0.
var looks = func() []time.Duration {
	at := []time.Duration{0}
	for pause := 100 * time.Millisecond; at[len(at)-1] < lateFor; pause *= 4 {
		at = append(at, min(at[len(at)-1]+pause, lateFor))
	}
	return at
}()

// The request to enter arrives long after its caller has given up. The key appears, blocks for at most four times its
// delay or 100 ms, and is deleted.
func TestReaper_deletesWhatAppearsLate(t *testing.T) {
	for name, tc := range map[string]struct{ arrives, found time.Duration }{
		"at once":          {time.Second + 3*time.Millisecond, time.Second + looks[1]},
		"soon":             {1400 * time.Millisecond, time.Second + looks[2]},
		"later":            {7 * time.Second, time.Second + looks[4]},
		"after 15 minutes": {15*time.Minute + 5*time.Second, time.Second + looks[8]},
	} {
		for how, take := range takes {
			bubbleOf(t, how+" "+name, func(t *testing.T, e *env) {
				other := e.join(t)
				e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Before: tc.arrives, Late: true})
				require.ErrorIs(t, second(take(e.s, timeout(t, time.Second), "a")), context.DeadlineExceeded)
				require.Equal(t, time.Second, e.now())
				e.at(tc.arrives - 1)
				require.Empty(t, e.keys("a"))
				e.at(tc.arrives)
				require.Len(t, e.keys("a"), 1)
				require.ErrorIs(t, second(other.s.TryLock(t.Context(), "a")), lease.ErrLocked)
				next := other.wait(t.Context(), "a")
				got := granted(t, next)
				require.Equal(t, tc.found, got.at)
				require.Equal(t, []string{got.lock.Key()}, e.keys("a"))
				require.Equal(t, lease.StateHeld, e.s.Status().State)
			})
		}
	}
}

// A look that comes early, with that for another key, does not make the next one later than four times the time so far.
func TestReaper_looksEarlyBesideAnother(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		const begun, given, delay = 10 * time.Millisecond, 10 * time.Millisecond, 95 * time.Millisecond
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Request})
		_, err := e.s.TryLock(timeout(t, given), "a") // looked for again 100 ms later
		require.ErrorIs(t, err, context.DeadlineExceeded)
		e.at(given + begun)
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Before: delay, Late: true})
		require.ErrorIs(t, second(e.s.TryLock(timeout(t, given), "b")), context.DeadlineExceeded)
		e.at(given + begun + delay)
		require.Len(t, e.keys("b"), 1)
		e.at(given + begun + delay + 4*delay)
		require.Empty(t, e.keys("b"))
	})
}

// A duplicate of the request to enter that arrives after Unlock enters again; the reaper deletes its key.
func TestReaper_deletesALateDuplicateAfterUnlock(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		const arrives = 18 * time.Second
		const unlocked = 6 * time.Second
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Before: arrives, Late: true})
		l := e.lock(t, "a")
		require.InDelta(t, attempt, e.now(), float64(25*time.Millisecond))
		e.at(unlocked)
		require.NoError(t, l.Unlock(t.Context()))
		e.at(arrives)
		require.Equal(t, []string{l.Key()}, e.keys("a"))
		e.at(unlocked + looks[5])
		require.Empty(t, e.keys("a"))
	})
}

// The reaper looks for a key that may still arrive soon, then at growing intervals for 20 minutes, and no longer.
func TestReaper_endsAfter20Minutes(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Request})
		require.ErrorIs(t, second(e.s.Lock(timeout(t, time.Second), "a")), context.DeadlineExceeded)
		e.at(2 * time.Hour)
		sent := e.sent(fakeetcd.Txn)[1:]
		require.Len(t, sent, 9)
		for i, at := range sent {
			require.Equal(t, time.Second+looks[i], at)
		}
		require.Equal(t, time.Second+lateFor, sent[8])

		// A new orphan starts the reaper again.
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer})
		require.ErrorIs(t, second(e.s.Lock(timeout(t, time.Second), "a")), context.DeadlineExceeded)
		synctest.Wait()
		require.Empty(t, e.keys("a"))
		e.at(4 * time.Hour)
		require.Len(t, e.sent(fakeetcd.Txn), 2*(1+len(sent)))
	})
}

// A lease takes its keys with it, so the reaper stops.
func TestReaper_endsWithTheLease(t *testing.T) {
	for name, tc := range map[string]struct {
		lose func(*env)
		last time.Duration // of the latest request to delete
	}{
		"revoked":         {func(e *env) { _ = e.srv.Revoke(e.s.Status().LeaseID) }, third},
		"deadline passed": {func(e *env) { e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Lose: fakeetcd.Request}) }, 3*ttl + 1},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Request})
			require.ErrorIs(t, second(e.s.Lock(timeout(t, time.Second), "a")), context.DeadlineExceeded)
			e.at(2 * time.Second)
			tc.lose(e)
			e.at(time.Hour)
			sent := e.sent(fakeetcd.Txn)
			require.LessOrEqual(t, sent[len(sent)-1], tc.last)
			require.Equal(t, lease.StateLost, e.s.Status().State)
		})
	}
}

// A key of the same name that is not on our lease is not ours.
func TestReaper_deletesNobodyElsesKey(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer})
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Before: 5 * time.Second}) // for the first sweep
		require.ErrorIs(t, second(e.s.Lock(timeout(t, time.Second), "a")), context.DeadlineExceeded)
		key := e.keys("a")[0]
		require.True(t, e.srv.Delete(key))
		e.srv.Put(key, "somebody else's")
		e.at(time.Hour)
		require.Equal(t, []string{key}, e.keys("a"))
	})
}

// touches matches transactions that write a key whose name contains part.
func touches(part string) func(fakeetcd.Call) bool {
	return func(call fakeetcd.Call) bool {
		return writes(call) && strings.Contains(call.Request.(*pb.TxnRequest).String(), part)
	}
}

// giveUp acquires n locks, loses the answers, and gives up after a second.
func (e *env) giveUp(t *testing.T, n int) {
	t.Helper()
	restore := e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Lose: fakeetcd.Answer, Match: touches("request_put")})
	ctx := timeout(t, time.Second)
	errs := make(chan error, n)
	for i := range n {
		go func() {
			_, err := e.s.TryLock(ctx, fmt.Sprintf("a/%d", i))
			errs <- err
		}()
	}
	for range n {
		require.ErrorIs(t, receive(t, errs), context.DeadlineExceeded)
	}
	restore()
}

// A key that the session may not delete does not keep the others from being deleted. It is retried at growing
// intervals.
func TestReaper_oneRefusalLeavesTheOthers(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		const n = 100
		restore := e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Err: errDenied, Match: touches("a/17/")})
		e.giveUp(t, n)
		e.at(time.Second + 10*time.Millisecond)
		require.Len(t, e.keys("a/"), 1)
		require.Equal(t, "a/17/", e.keys("a/")[0][:5])

		before := len(e.writes())
		e.at(2 * time.Hour)
		require.Less(t, strings.Count(e.log.String(), "not deleted yet"), 25)
		tries := 0
		for _, call := range e.writes()[before:] {
			if touches("a/17/")(call) {
				tries++
			}
		}
		require.Greater(t, tries, 5)
		require.Less(t, tries, 25)
		restore()
		e.at(2*time.Hour + 10*time.Minute)
		require.Empty(t, e.keys("a/"))
	})
}

// Unlock returns a refusal, and the reaper tries again after a third of the TTL. Many releases that are refused one after
// the other are one line in the log.
func TestReaper_logsSeldom(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		var locks []*lease.Lock
		for i := range 20 {
			locks = append(locks, e.lock(t, fmt.Sprintf("a/%d", i)))
		}
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Err: errDenied})
		for _, l := range locks {
			require.ErrorIs(t, l.Unlock(t.Context()), rpctypes.ErrPermissionDenied)
			time.Sleep(time.Second / 10)
		}
		require.Equal(t, 2*time.Second, e.now(), "at once")
		e.at(third - 1)
		require.Len(t, e.keys("a/"), 20)
		e.c.Reset()
		e.at(third)
		require.Empty(t, e.keys("a/"))
		require.NoError(t, e.s.Close(t.Context())) // writes the log
		require.Equal(t, 1, strings.Count(e.log.String(), "not deleted yet"))
	})
}

// Keys with an unknown outcome cost a handful of requests, which many of them share.
func TestReaper_looksAreFew(t *testing.T) {
	bubbleWith(t, lease.Options{TTL: 2 * time.Second}, func(t *testing.T, e *env) {
		const n = 400
		e.giveUp(t, n)
		before := len(e.writes())
		e.at(time.Hour)
		require.LessOrEqual(t, len(e.writes())-before, (n/100+1)*len(looks))
		require.Empty(t, e.keys(""))

		// A key is not looked for with each later one.
		before = len(e.writes())
		for range n / 4 {
			e.giveUp(t, 1)
		}
		keys := 0
		for _, call := range e.writes()[before:] {
			keys += len(call.Request.(*pb.TxnRequest).Success)
		}
		require.LessOrEqual(t, keys, n/2*len(looks))
	})
}

// A server that takes fewer operations in a transaction than usual gets smaller ones.
func TestReaper_learnsTheServersLimit(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		const waiters, limit = 400, 16
		other := e.join(t)
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan error, waiters)
		for i := range waiters {
			name := fmt.Sprintf("a/%d", i)
			other.lock(t, name) // so that the waiter has a key
			go func() { got <- second(e.s.Lock(ctx, name)) }()
		}
		synctest.Wait()
		require.Len(t, e.keys("a/"), 2*waiters)
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Err: rpctypes.ErrGRPCTooManyOps, Match: func(call fakeetcd.Call) bool {
			return len(call.Request.(*pb.TxnRequest).Success) > limit
		}})
		e.c.Cut()
		cancel()
		for range waiters {
			require.ErrorIs(t, receive(t, got), context.Canceled)
		}
		e.c.Restore()
		synctest.Wait()
		refused := slices.DeleteFunc(e.c.Calls(fakeetcd.Txn), func(call fakeetcd.Call) bool { return call.Err == nil })
		require.NotEmpty(t, refused)
		require.LessOrEqual(t, len(refused), 2*3, "100, 50 and 25 for the waiters that came first, and for all others")
		require.Len(t, e.keys("a/"), waiters)
		require.Zero(t, e.now())
	})
}
