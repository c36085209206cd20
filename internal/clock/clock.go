// Package clock measures elapsed time for deadlines that must never be late.
//
// Go's monotonic clock stands still while the host is suspended (Linux CLOCK_MONOTONIC), but a lease on the server runs
// on. If the system has a clock that also runs during suspension (CLOCK_BOOTTIME), the larger of the two elapsed times
// counts. The wall clock is never read: setting it neither lengthens nor shortens a lease.
package clock

import "time"

// Clock reads the time. The zero value has no clock that runs during suspension; System is the host's. It is safe for
// concurrent use.
type Clock struct {
	// Boot returns the time since boot, including suspension; nil if the system has no such clock.
	Boot func() time.Duration
	// Alarm makes an alarm on that clock, which calls ring. It is nil, or returns nil, if the system has none.
	Alarm func(ring func()) Alarm
}

// System is the clock of this host.
var System = Clock{Boot: boot(), Alarm: newAlarm}

// Instant is a moment, read on both clocks.
type Instant struct {
	mono time.Time
	boot time.Duration
}

// Now reads both clocks.
func (c Clock) Now() Instant {
	i := Instant{mono: time.Now()}
	if c.Boot != nil {
		i.boot = c.Boot()
	}
	return i
}

// Since returns the time elapsed since i: the longer one of the two clocks' answers.
func (c Clock) Since(i Instant) time.Duration {
	elapsed := time.Since(i.mono)
	if c.Boot != nil {
		elapsed = max(elapsed, c.Boot()-i.boot)
	}
	return elapsed
}

// After returns the moment d after i, as a time.Time for people and timers. It subtracts the time spent suspended since
// i, so it is the earlier one of the two clocks' answers.
func (c Clock) After(i Instant, d time.Duration) time.Time {
	suspended := c.Since(i) - time.Since(i.mono)
	// The clocks are read one after the other, so a difference below a millisecond is no suspension.
	if suspended < time.Millisecond {
		suspended = 0
	}
	return i.mono.Add(d - suspended)
}

// Later reports whether i is a later moment than j.
func (i Instant) Later(j Instant) bool { return i.mono.After(j.mono) }

// Alarm goes off at a moment of the boot clock.
type Alarm interface {
	// Set makes the alarm go off after d, instead of when it was set to before. It reports false if it cannot.
	Set(d time.Duration) bool
	// Close ends the alarm, and returns when it will not go off any more.
	Close()
}

// often is how often the timer sends if no alarm shows that the host was suspended.
const often = 500 * time.Millisecond

// Timer sends on C when a duration has passed by one of the two clocks. It may also send earlier, so the receiver
// checks the clock and resets the timer. It is not safe for concurrent use, and its maker must stop it.
//
// A Go timer stands still while the host is suspended. If the clock has an alarm, that goes off as soon as the host
// wakes up; otherwise the timer sends every half second. The Go timer also runs beside the alarm, so an alarm that
// fails does not delay anything while the host is awake.
type Timer struct {
	C <-chan struct{} // of capacity 1

	clock Clock
	alarm Alarm // nil: none
	timer *time.Timer
}

// NewTimer makes a timer that is due after d.
func (c Clock) NewTimer(d time.Duration) *Timer {
	due := make(chan struct{}, 1)
	ring := func() {
		select {
		case due <- struct{}{}:
		default:
		}
	}
	t := &Timer{C: due, clock: c}
	if c.Alarm != nil {
		t.alarm = c.Alarm(ring)
	}
	t.timer = time.AfterFunc(t.set(d), ring)
	return t
}

// Reset makes the timer due after d, instead of when it was due before.
func (t *Timer) Reset(d time.Duration) { t.timer.Reset(t.set(d)) }

// set sets the alarm, and returns the duration for the Go timer.
func (t *Timer) set(d time.Duration) time.Duration {
	if t.clock.Boot == nil || t.alarm != nil && t.alarm.Set(d) { // without Boot there is nothing to compare
		return d
	}
	return min(d, often)
}

// Stop ends the timer. C may still have a value in it.
func (t *Timer) Stop() {
	t.timer.Stop()
	if t.alarm != nil {
		t.alarm.Close()
	}
}
