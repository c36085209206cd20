package lease_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/hosttest"
	"github.com/leasefence/leasefence/lease"
)

// A client that is cut off ends its locks by its own timer before the server drops the lease. The deadline counts from
// the send.
func TestLock_endsAtTheDeadline(t *testing.T) {
	const renewal, grant = fakeetcd.KeepAliveOnce, fakeetcd.Grant
	const s, ms = time.Second, time.Millisecond
	for name, tc := range map[string]struct {
		opts   lease.Options
		method fakeetcd.Method
		fault  fakeetcd.Fault
		cut    time.Duration
		want   time.Duration // the deadline
		early  time.Duration // the server's expiry is later by at least this
	}{
		"never renewed":              {cut: s, want: usable, early: s},
		"renewed":                    {cut: 15 * s, want: third + usable, early: s},
		"renewed often":              {cut: 55 * s, want: 5*third + usable, early: s},
		"renewal answered after 1s":  {method: renewal, fault: fakeetcd.Fault{After: s}, cut: 15 * s, want: third + usable, early: s},
		"renewal answered, then cut": {method: renewal, fault: fakeetcd.Fault{After: 2 * s}, cut: third + 2*s + 1, want: third + usable, early: s},
		"renewal 1s on its way":      {method: renewal, fault: fakeetcd.Fault{Before: s}, cut: 15 * s, want: third + usable, early: 2 * s},
		"answer under way when cut":  {method: renewal, fault: fakeetcd.Fault{After: s}, cut: third + 500*ms, want: usable, early: s},
		"grant answered after 4s":    {method: grant, fault: fakeetcd.Fault{After: 4 * s}, cut: 5 * s, want: usable, early: s},
		"grant 4s on its way":        {method: grant, fault: fakeetcd.Fault{Before: 4 * s}, cut: 5 * s, want: usable, early: 5 * s},
		"margin of 5s":               {opts: lease.Options{Margin: 5 * s}, cut: 15 * s, want: third + 25*s, early: 5 * s},
		"TTL 5s":                     {opts: lease.Options{TTL: 5 * s}, cut: s, want: 4500 * ms, early: 500 * ms},
		"TTL raised from 1s to 2s":   {opts: lease.Options{TTL: s}, cut: s, want: 2*s/3 + 1800*ms, early: 200 * ms},
		"TTL rounded up to 5s":       {opts: lease.Options{TTL: 4*s + ms}, cut: s, want: 4500 * ms, early: 500 * ms},
		"TTL 1h":                     {opts: lease.Options{TTL: time.Hour}, cut: 30 * time.Minute, want: 20*time.Minute + 3599*s, early: s},
	} {
		inBubble(t, name, func(t *testing.T) {
			e := start(t, tc.opts, faulty(tc.method, tc.fault))
			l := e.lock(t, "a")
			end := e.ended(l)
			e.at(tc.cut)
			e.c.Cut()
			require.Equal(t, e.began.Add(tc.want), e.s.Status().Deadline)
			require.Equal(t, e.began.Add(tc.want), l.Deadline())

			e.at(tc.want - 1)
			requireLive(t, l)
			require.NotEqual(t, lease.StateLost, e.s.Status().State)
			expiry := e.srv.Leases()[0].Expiry
			require.GreaterOrEqual(t, expiry.Sub(e.began.Add(tc.want)), tc.early)

			require.Equal(t, tc.want, receive(t, end))
			lost := lossOf(t, context.Cause(l.Context()), lease.ReasonDeadlinePassed)
			require.NoError(t, lost.Err, "there was no answer at all")
			require.Equal(t, lease.StateLost, e.s.Status().State)
			requireLost(t, e.s.Status().Err, lease.ReasonDeadlinePassed)
		})
	}
}

func faulty(m fakeetcd.Method, f fakeetcd.Fault) func(*fakeetcd.Client) {
	return func(c *fakeetcd.Client) { c.Inject(m, f) }
}

// The session does not use a lease whose grant got no answer.
func TestSession_countsFromTheGrantThatWasAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{}, faulty(fakeetcd.Grant, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer}))
		sent := e.sent(fakeetcd.Grant)
		require.Len(t, sent, 2)
		require.Equal(t, e.began.Add(sent[1]+usable), e.s.Status().Deadline)
		require.Equal(t, e.leaseIDs()[1], e.s.Status().LeaseID)
	})
}

// A loss carries the last failure to renew, unless a later renewal has overcome it.
func TestLock_lossCarriesTheLastFailure(t *testing.T) {
	for name, overcome := range map[string]bool{"last": false, "overcome": true} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			l := e.lock(t, "a")
			end := e.ended(l)
			restore := e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Err: errDenied})
			e.at(third + time.Second)
			require.Equal(t, lease.StateJeopardy, e.s.Status().State)
			require.ErrorIs(t, e.s.Status().Err, rpctypes.ErrPermissionDenied)
			if overcome {
				restore()
				e.at(2 * third)
				require.Equal(t, lease.StateHeld, e.s.Status().State)
				e.c.Cut()
			}
			receive(t, end)
			lost := lossOf(t, context.Cause(l.Context()), lease.ReasonDeadlinePassed)
			if overcome {
				require.NoError(t, lost.Err)
				return
			}
			require.ErrorIs(t, lost.Err, rpctypes.ErrPermissionDenied)
			require.ErrorContains(t, lost, "permission denied")
		})
	}
}

// An answer after the deadline changes nothing for the handles; the session takes a new lease.
func TestLock_isNotRevivedByALateAnswer(t *testing.T) {
	for name, fault := range map[string]fakeetcd.Fault{
		"answer at the deadline":  {After: usable - third},
		"answer 1ns after":        {After: usable - third + 1},
		"answer 100ms after":      {After: usable - third + 100*time.Millisecond},
		"request at the deadline": {Before: usable - third, Late: true},
		"request just before it":  {Before: usable - third - 1, After: 2, Late: true},
		"request 100ms after":     {Before: usable - third + 100*time.Millisecond, Late: true},
		"request an hour after":   {Before: time.Hour, Late: true},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			old := e.s.Status().LeaseID
			l := e.lock(t, "a")
			end := e.ended(l)
			fault.Times = 1
			e.c.Inject(fakeetcd.KeepAliveOnce, fault)
			restore := e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Lose: fakeetcd.Request})
			require.Equal(t, usable, receive(t, end))
			restore()
			e.at(usable + 200*time.Millisecond)
			requireLost(t, context.Cause(l.Context()), lease.ReasonDeadlinePassed)
			require.Equal(t, lease.StateLost, e.s.Status().State)

			again := e.lock(t, "b")
			require.NotEqual(t, old, e.s.Status().LeaseID)
			require.Equal(t, lease.StateHeld, e.s.Status().State)
			require.Greater(t, again.Token(), l.Token())
			requireLost(t, l.Unlock(t.Context()), lease.ReasonDeadlinePassed)
			requireLive(t, again)
			e.at(2 * time.Hour)
			requireLive(t, again)
			requireLost(t, context.Cause(l.Context()), lease.ReasonDeadlinePassed)
			require.Equal(t, []string{again.Key()}, e.keys(""))
		})
	}
}

// startOnHost starts a session that holds a lock, on a host that can be suspended.
func startOnHost(t *testing.T, alarms bool, opts ...lease.LockOption) (*hosttest.Host, *env, *lease.Lock) {
	t.Helper()
	host := hosttest.Start(t, alarms)
	e := start(t, lease.Options{})
	return host, e, e.lock(t, "a", opts...)
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

// After a pause, a process may see its key gone, or the bound of the hold reached, before it checks the clock. The reason
// is the deadline: nobody has deleted the key before the server dropped the lease, and the lock is not held any more.
func TestLock_deadlineIsTheReasonWhateverComesFirst(t *testing.T) {
	for name, come := range map[string]func(*env, *lease.Lock){
		"the key goes":     func(e *env, l *lease.Lock) { e.srv.Delete(l.Key()) },
		"the longest hold": func(*env, *lease.Lock) { time.Sleep(100 * time.Millisecond) },
	} {
		inBubble(t, name, func(t *testing.T) {
			host, e, l := startOnHost(t, false, lease.WithMaxHold(1200*time.Millisecond))
			e.at(1100 * time.Millisecond) // the key is watched by now
			e.c.Inject(fakeetcd.TimeToLive, fakeetcd.Fault{Lose: fakeetcd.Request})
			host.Suspend(usable)
			requireLive(t, l) // nothing has checked the clock
			come(e, l)
			synctest.Wait()
			requireLost(t, context.Cause(l.Context()), lease.ReasonDeadlinePassed)
			requireLost(t, l.Unlock(t.Context()), lease.ReasonDeadlinePassed)
			require.LessOrEqual(t, e.now(), 1200*time.Millisecond, "before the next check of the clock")
		})
	}
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

// A renewal that became due during a suspension is sent while the lease is still valid: on waking up if the host has an
// alarm, and otherwise as soon as the session checks the clocks.
func TestSession_renewsOnWakingUp(t *testing.T) {
	for alarm, row := range map[bool]struct{ at, sleep, sent time.Duration }{
		true:  {at: time.Second, sleep: usable - time.Second - 1, sent: time.Second},
		false: {at: third - time.Second, sleep: 15 * time.Second, sent: third - 500*time.Millisecond},
	} {
		inBubble(t, fmt.Sprint("alarm ", alarm), func(t *testing.T) {
			host, e, l := startOnHost(t, alarm)
			e.at(row.at)
			host.Suspend(row.sleep)
			e.at(row.sent)
			require.Equal(t, []time.Duration{row.sent}, e.sent(fakeetcd.KeepAliveOnce))
			require.Equal(t, e.began.Add(row.sent+usable), e.s.Status().Deadline)
			e.at(ttl)
			requireLive(t, l)
		})
	}
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
