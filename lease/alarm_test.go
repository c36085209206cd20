package lease_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/clock"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// sleeper is a host that can be suspended and whose boot clock has alarms: as on Linux, one that came due meanwhile goes
// off when the host wakes up.
type sleeper struct {
	*suspender

	mu     sync.Mutex // guards the fields below
	alarms map[*bootAlarm]struct{}
	made   int
}

type bootAlarm struct {
	host *sleeper
	ring func()
	due  time.Duration // on the boot clock
}

func startSleeper(t *testing.T) *sleeper {
	t.Helper()
	h := &sleeper{suspender: &suspender{began: time.Now()}, alarms: make(map[*bootAlarm]struct{})}
	useClock(t, clock.Clock{Boot: h.boot, Alarm: func(ring func()) clock.Alarm {
		h.mu.Lock()
		defer h.mu.Unlock()
		a := &bootAlarm{host: h, ring: ring, due: 1 << 62}
		h.alarms[a] = struct{}{}
		h.made++
		return a
	}})
	return h
}

func (h *sleeper) boot() time.Duration { return time.Since(h.began) + time.Duration(h.slept.Load()) }

func (h *sleeper) sleep(d time.Duration) {
	h.suspender.sleep(d)
	h.mu.Lock()
	defer h.mu.Unlock()
	for a := range h.alarms {
		if a.due <= h.boot() {
			a.ring()
		}
	}
}

func (h *sleeper) open() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.alarms)
}

func (a *bootAlarm) Set(d time.Duration) bool {
	a.host.mu.Lock()
	defer a.host.mu.Unlock()
	a.due = a.host.boot() + d
	return true
}

func (a *bootAlarm) Close() {
	a.host.mu.Lock()
	defer a.host.mu.Unlock()
	delete(a.host.alarms, a)
}

// P1; pain 33: the context of a host that was suspended past its deadline ends when it wakes up, at whatever moment of the
// renewal cycle, and no answer that comes after that revives it.
func TestLock_endsOnWakingUp(t *testing.T) {
	for at := 700 * time.Millisecond; at < 2*third; at += 900 * time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			host := startSleeper(t)
			e := start(t, lease.Options{})
			l := e.lock(t, "a")
			end := e.ended(l)
			e.c.Inject(fakeetcd.KeepAliveOnce, fakeetcd.Fault{Before: time.Second, Late: true, After: time.Second})
			e.at(at)
			host.sleep(ttl + third)
			require.Equal(t, at, receive(t, end), "at once")
			requireLost(t, context.Cause(l.Context()), lease.DeadlinePassed)
			require.Equal(t, lease.Lost, e.s.Status().State)
			e.at(at + ttl) // what was under way has come
			requireLost(t, context.Cause(l.Context()), lease.DeadlinePassed)
			requireLost(t, l.Err(), lease.DeadlinePassed)
			require.Equal(t, lease.Lost, e.s.Status().State)
			requireLost(t, l.Unlock(t.Context()), lease.DeadlinePassed)
		})
	}
}

// A renewal that became due during a suspension is sent on waking up, while the lease is still valid.
func TestSession_renewsOnWakingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := startSleeper(t)
		e := start(t, lease.Options{})
		l := e.lock(t, "a")
		e.at(time.Second)
		host.sleep(usable - time.Second - 1)
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
		host := startSleeper(t)
		e := start(t, lease.Options{})
		l := e.lock(t, "a")
		e.at(100 * ttl)
		requireLive(t, l)
		require.Equal(t, 1, host.open())
		host.sleep(ttl)
		synctest.Wait()
		requireLost(t, context.Cause(l.Context()), lease.DeadlinePassed)
		require.Zero(t, host.open(), "it goes with the lease")
		e.lock(t, "b")
		synctest.Wait()
		require.Equal(t, 1, host.open())
		require.Equal(t, 2, host.made)
		require.NoError(t, e.s.Close(t.Context()))
		require.Zero(t, host.open())
	})
}
