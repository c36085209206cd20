package lease_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/hosttest"
	"github.com/leasefence/leasefence/lease"
)

// startOnHost starts a session that holds a lock, on a host that can be suspended.
func startOnHost(t *testing.T, alarms bool) (*hosttest.Host, *env, *lease.Lock) {
	t.Helper()
	host := hosttest.Start(t, alarms)
	e := start(t, lease.Options{})
	return host, e, e.lock(t, "a")
}

// The time of a suspension counts, even if no timer has fired.
func TestSession_suspensionCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host, e, l := startOnHost(t, false)
		old := e.s.Status().LeaseID
		e.at(time.Second)

		host.Suspend(usable - time.Second - 1)
		require.Equal(t, lease.StateHeld, e.s.Status().State)
		require.Equal(t, time.Now().Add(1), e.s.Status().Deadline)
		host.Suspend(1)
		require.Equal(t, lease.StateLost, e.s.Status().State)
		requireLost(t, e.s.Status().Err, lease.ReasonDeadlinePassed)
		requireLive(t, l) // neither a timer nor a call has checked the clock yet

		again := e.lock(t, "b")
		requireLost(t, context.Cause(l.Context()), lease.ReasonDeadlinePassed)
		require.Equal(t, time.Second, e.now(), "at once")
		require.NotEqual(t, old, e.s.Status().LeaseID)
		require.Equal(t, time.Now().Add(usable), e.s.Status().Deadline)
		requireLive(t, again)
	})
}

// Err, called just before a write, is right even before any timer has run.
func TestLock_Err_looksAtTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host, e, l := startOnHost(t, false)
		e.at(0) // the session's timers are set
		host.Suspend(usable - 1)
		require.NoError(t, l.Err())
		require.Equal(t, time.Now().Add(1), l.Deadline())
		host.Suspend(1)
		requireLive(t, l)
		requireLost(t, l.Err(), lease.ReasonDeadlinePassed)
		requireLost(t, context.Cause(l.Context()), lease.ReasonDeadlinePassed)
	})
}

// After a pause, a process may see its key gone before its deadline timer fires. The reason is the deadline: the server
// has dropped the lease, and nobody has deleted the key.
func TestLock_deadlineIsTheReasonEvenIfTheKeyGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host, e, l := startOnHost(t, false)
		e.at(time.Second) // the key is watched by now
		e.c.Inject(fakeetcd.TimeToLive, fakeetcd.Fault{Lose: fakeetcd.Request})
		host.Suspend(usable)
		requireLive(t, l) // nothing has checked the clock
		require.True(t, e.srv.Delete(l.Key()))
		synctest.Wait()
		requireLost(t, context.Cause(l.Context()), lease.ReasonDeadlinePassed)
		require.Equal(t, time.Second, e.now(), "at once")
	})
}

// The same if the bound of the hold has been reached since: with that cause, the lock would still be held.
func TestLock_deadlineIsTheReasonAlsoAfterTheLongestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := hosttest.Start(t, false)
		e := start(t, lease.Options{})
		l := e.lock(t, "a", lease.WithMaxHold(1200*time.Millisecond))
		e.at(1100 * time.Millisecond)
		host.Suspend(usable)
		e.at(1200 * time.Millisecond) // before the next check of the clock
		requireLost(t, context.Cause(l.Context()), lease.ReasonDeadlinePassed)
		requireLost(t, l.Unlock(t.Context()), lease.ReasonDeadlinePassed)
	})
}

// A short suspension moves the deadline closer. The renewal that became due meanwhile is sent as soon as the session
// checks the clocks, so the lock is not lost.
func TestSession_shortSuspensionCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host, e, l := startOnHost(t, false)
		e.at(third - time.Second)
		host.Suspend(15 * time.Second)
		require.Equal(t, e.began.Add(usable-15*time.Second), e.s.Status().Deadline)
		e.at(third)
		require.Equal(t, []time.Duration{third - 500*time.Millisecond}, e.sent(fakeetcd.KeepAliveOnce))
		require.Equal(t, e.began.Add(third-500*time.Millisecond+usable), e.s.Status().Deadline)
		e.at(ttl)
		requireLive(t, l)
	})
}

// Timers stop with the host. After a suspension past the deadline the handle ends as soon as the session checks the
// clocks: each half second, or when a renewal is due, which is not sent, or when an answer comes, which revives nothing.
func TestLock_endsSoonAfterASuspension(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	for name, tc := range map[string]struct {
		answer    time.Duration // how long that to a renewal takes
		at, sleep time.Duration
		want      time.Duration
		renewals  int
	}{
		"the next check":   {at: third + 1200*ms, sleep: usable, want: third + 1500*ms, renewals: 1}, // after a renewal too
		"a renewal is due": {at: third - 100*ms, sleep: 25 * s, want: third},
		// The deadline was 29 s after the start. This is 32 s, 22 s after the send, which is recent enough.
		"an answer comes": {answer: 2250 * ms, at: third + 2100*ms, sleep: 20 * s, want: third + 2250*ms, renewals: 1},
	} {
		inBubble(t, name, func(t *testing.T) {
			host, e, l := startOnHost(t, false)
			end := e.ended(l)
			e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{After: tc.answer})
			e.at(tc.at)
			host.Suspend(tc.sleep)
			require.Equal(t, tc.want, receive(t, end))
			requireLost(t, context.Cause(l.Context()), lease.ReasonDeadlinePassed)
			require.Equal(t, lease.StateLost, e.s.Status().State)
			require.Len(t, e.sent(fakeetcd.KeepAliveOnce), tc.renewals)
		})
	}
}

// The context of a host that was suspended past its deadline ends when the host wakes up, at any moment of the renewal
// cycle, and no later answer revives it.
func TestLock_endsOnWakingUp(t *testing.T) {
	for at := 700 * time.Millisecond; at < 2*third; at += 900 * time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			host, e, l := startOnHost(t, true)
			end := e.ended(l)
			e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Before: time.Second, Late: true, After: time.Second})
			e.at(at)
			host.Suspend(ttl + third)
			require.Equal(t, at, receive(t, end), "at once")
			requireLost(t, context.Cause(l.Context()), lease.ReasonDeadlinePassed)
			require.Equal(t, lease.StateLost, e.s.Status().State)
			e.at(at + ttl) // everything under way has arrived
			requireLost(t, context.Cause(l.Context()), lease.ReasonDeadlinePassed)
			requireLost(t, l.Err(), lease.ReasonDeadlinePassed)
			require.Equal(t, lease.StateLost, e.s.Status().State)
			requireLost(t, l.Unlock(t.Context()), lease.ReasonDeadlinePassed)
		})
	}
}

// A renewal that became due during a suspension is sent on waking up, while the lease is still valid.
func TestSession_renewsOnWakingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host, e, l := startOnHost(t, true)
		e.at(time.Second)
		host.Suspend(usable - time.Second - 1)
		synctest.Wait()
		require.Equal(t, []time.Duration{time.Second}, e.sent(fakeetcd.KeepAliveOnce))
		require.Equal(t, time.Now().Add(usable), e.s.Status().Deadline)
		e.at(ttl)
		requireLive(t, l)
	})
}

// With an alarm, the session does not check the clocks while nothing happens.
func TestSession_hasOneAlarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host, e, l := startOnHost(t, true)
		e.at(100 * ttl)
		requireLive(t, l)
		require.Equal(t, 1, host.Alarms().Open)
		host.Suspend(ttl)
		synctest.Wait()
		requireLost(t, context.Cause(l.Context()), lease.ReasonDeadlinePassed)
		require.Zero(t, host.Alarms().Open, "the alarm goes with the lease")
		e.lock(t, "b")
		synctest.Wait()
		require.Equal(t, 1, host.Alarms().Open)
		require.Equal(t, 2, host.Alarms().Made)
		require.NoError(t, e.s.Close(t.Context()))
		require.Zero(t, host.Alarms().Open)
	})
}

// A waiter whose host was suspended when the lock was released checks the clock before it gets the lock.
func TestSession_Lock_looksAtTheClockAfterTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := hosttest.Start(t, false)
		e := start(t, lease.Options{})
		holder := e.join(t).lock(t, "a")
		next := e.wait(t.Context(), "a")
		e.at(90 * time.Millisecond)
		host.Suspend(usable)
		require.True(t, e.srv.Delete(holder.Key()))
		got := receive(t, next)
		requireLost(t, got.err, lease.ReasonDeadlinePassed)
		require.Equal(t, 90*time.Millisecond, got.at, "with the event")
	})
}

// stuck is a log handler that does not return before release is closed.
type stuck struct {
	slog.Handler

	release chan struct{}
}

// Enabled implements [slog.Handler].
func (h stuck) Enabled(context.Context, slog.Level) bool {
	<-h.release
	return true
}

// WithAttrs implements [slog.Handler].
func (h stuck) WithAttrs([]slog.Attr) slog.Handler {
	<-h.release
	return h
}

// deaf is a lease client whose requests ignore their context.
type deaf struct {
	clientv3.Lease

	release chan struct{}
}

// Revoke implements [clientv3.Lease].
func (c deaf) Revoke(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseRevokeResponse, error) {
	<-c.release
	return c.Lease.Revoke(ctx, id)
}

// Close is bounded even if a request is not, and the renewals stop.
func TestSession_Close_isBoundedThoughTheClientBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		e := start(t, lease.Options{}, func(c *fakeetcd.Client) { c.Lease = deaf{c.Lease, release} })
		e.lock(t, "a")
		require.ErrorIs(t, e.s.Close(timeout(t, 5*time.Second)), context.DeadlineExceeded)
		require.Equal(t, 6*time.Second, e.now())
		e.at(2 * ttl)
		require.Empty(t, e.sent(fakeetcd.KeepAliveOnce))
		require.Empty(t, e.leaseIDs())
		close(release)
		require.ErrorIs(t, e.s.Close(t.Context()), context.DeadlineExceeded, "the first call has ended")
	})
}
