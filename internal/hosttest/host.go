// Package hosttest simulates a host that can be suspended, for tests in fake time.
package hosttest

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasefence/leasefence/internal/clock"
)

// Host has a boot clock that runs on while the host is suspended, when timers stand still. If it has alarms, an alarm
// that comes due during a suspension goes off when the host wakes up, as on Linux.
type Host struct {
	began time.Time

	mu     sync.Mutex // guards the fields below
	slept  time.Duration
	alarms map[*alarm]struct{}
	count  Alarms
}

// Alarms counts the alarms of a host.
type Alarms struct {
	Open int // alarms that were made and not closed
	Made int
	Set  int // calls of Set
}

type alarm struct {
	host *Host
	ring func()
	due  time.Duration // on the boot clock; 0: never
}

// Start makes the clock of a new host the system's until the test ends. The test runs in a bubble.
func Start(tb testing.TB, alarms bool) *Host {
	tb.Helper()
	h := &Host{began: time.Now(), alarms: make(map[*alarm]struct{})}
	before := clock.System
	clock.System = clock.Clock{Boot: func() time.Duration {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.now()
	}}
	if alarms {
		clock.System.Alarm = h.alarm
	}
	tb.Cleanup(func() {
		synctest.Wait() // timers read clock.System
		clock.System = before
	})
	return h
}

func (h *Host) now() time.Duration { return time.Since(h.began) + h.slept }

func (h *Host) alarm(ring func()) clock.Alarm {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := &alarm{host: h, ring: ring}
	h.alarms[a] = struct{}{}
	h.count.Made++
	return a
}

// Suspend suspends the host for d. It takes no time of the bubble.
func (h *Host) Suspend(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.slept += d
	for a := range h.alarms {
		if a.due != 0 && a.due <= h.now() {
			a.ring()
		}
	}
}

// Alarms returns the counts so far.
func (h *Host) Alarms() Alarms {
	h.mu.Lock()
	defer h.mu.Unlock()
	count := h.count
	count.Open = len(h.alarms)
	return count
}

// Set implements [clock.Alarm].
func (a *alarm) Set(d time.Duration) bool {
	a.host.mu.Lock()
	defer a.host.mu.Unlock()
	a.due = a.host.now() + d
	a.host.count.Set++
	return true
}

// Close implements [clock.Alarm].
func (a *alarm) Close() {
	a.host.mu.Lock()
	defer a.host.mu.Unlock()
	delete(a.host.alarms, a)
}
