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
