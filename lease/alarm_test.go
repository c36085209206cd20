package lease_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/hosttest"
	"github.com/leasefence/leasefence/lease"
)

// The context of a host that was suspended past its deadline ends when it wakes up, at whatever moment of the
// renewal cycle, and no answer that comes after that revives it.
func TestLock_endsOnWakingUp(t *testing.T) {
	for at := 700 * time.Millisecond; at < 2*third; at += 900 * time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			host := hosttest.Start(t, true)
			e := start(t, lease.Options{})
			l := e.lock(t, "a")
			end := e.ended(l)
			e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Before: time.Second, Late: true, After: time.Second})
			e.at(at)
			host.Suspend(ttl + third)
			require.Equal(t, at, receive(t, end), "at once")
			requireLost(t, context.Cause(l.Context()), lease.ReasonDeadlinePassed)
			require.Equal(t, lease.StateLost, e.s.Status().State)
			e.at(at + ttl) // what was under way has come
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
		host := hosttest.Start(t, true)
		e := start(t, lease.Options{})
		l := e.lock(t, "a")
		e.at(time.Second)
		host.Suspend(usable - time.Second - 1)
		synctest.Wait()
		require.Equal(t, []time.Duration{time.Second}, e.sent(fakeetcd.KeepAliveOnce))
		require.Equal(t, time.Now().Add(usable), e.s.Status().Deadline)
		e.at(ttl)
		requireLive(t, l)
	})
}

// While nothing happens nobody looks: with an alarm there is no need to.
func TestSession_hasOneAlarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := hosttest.Start(t, true)
		e := start(t, lease.Options{})
		l := e.lock(t, "a")
		e.at(100 * ttl)
		requireLive(t, l)
		require.Equal(t, 1, host.Alarms().Open)
		host.Suspend(ttl)
		synctest.Wait()
		requireLost(t, context.Cause(l.Context()), lease.ReasonDeadlinePassed)
		require.Zero(t, host.Alarms().Open, "it goes with the lease")
		e.lock(t, "b")
		synctest.Wait()
		require.Equal(t, 1, host.Alarms().Open)
		require.Equal(t, 2, host.Alarms().Made)
		require.NoError(t, e.s.Close(t.Context()))
		require.Zero(t, host.Alarms().Open)
	})
}
