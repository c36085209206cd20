// Package clock measures how long ago something happened, for deadlines that must never be too late.
//
// Go's monotonic clock stands still while the host is suspended (Linux CLOCK_MONOTONIC); a lease on the
// server goes on. Where the system has a clock that runs on (CLOCK_BOOTTIME), the larger of the two elapsed
// times counts. The wall clock is never consulted: setting it neither lengthens nor shortens a lease.
package clock

import "time"

// Clock reads the time. The zero value has no clock that runs during suspension; System is the host's.
type Clock struct {
	// Boot is the time since boot, suspension included; nil where the system has no such clock.
	Boot func() time.Duration
	// Alarm makes an alarm on that clock, which calls ring; nil, or a nil result, where there is none.
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

// Since is the time elapsed since i: the longer of what the two clocks say.
func (c Clock) Since(i Instant) time.Duration {
	elapsed := time.Since(i.mono)
	if c.Boot != nil {
		elapsed = max(elapsed, c.Boot()-i.boot)
	}
	return elapsed
}

// After is the moment d after i, as a time.Time for people and timers. Time spent suspended since i is
// taken off, so it is the earlier of the two clocks' answers.
func (c Clock) After(i Instant, d time.Duration) time.Time {
	suspended := c.Since(i) - time.Since(i.mono)
	// The clocks are read one after the other: less than a millisecond apart is the reading, not a suspension.
	if suspended < time.Millisecond {
		suspended = 0
	}
	return i.mono.Add(d - suspended)
}

// Later reports whether i is a later moment than j.
func (i Instant) Later(j Instant) bool { return i.mono.After(j.mono) }
