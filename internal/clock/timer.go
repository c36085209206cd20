package clock

import "time"

// Alarm goes off at a moment of the boot clock.
type Alarm interface {
	// Set makes it go off after d, and not as it was set before. It reports false if that cannot be.
	Set(d time.Duration) bool
	// Close ends it, and returns when it will not go off any more.
	Close()
}

// often is how often the clocks are compared where no alarm tells that the host has been suspended.
const often = 500 * time.Millisecond

// Timer sends on C when a duration has passed by one of the two clocks. It may send earlier too, so whoever receives
// looks at the clock and resets it. It is not for concurrent use, and whoever makes one stops it.
//
// A Go timer stands still while the host is suspended. Where the clock has an alarm, that goes off as soon as the
// host wakes up; where it has none, the timer sends every half second. The Go timer runs beside the alarm in any case:
// an alarm that fails costs no more than it would have given.
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

// Reset makes it due after d, instead of what it was set to before.
func (t *Timer) Reset(d time.Duration) { t.timer.Reset(t.set(d)) }

// set sets the alarm, and returns what the Go timer is to be set to.
func (t *Timer) set(d time.Duration) time.Duration {
	switch {
	case t.clock.Boot == nil: // nothing to compare
		return d
	case t.alarm != nil && t.alarm.Set(d):
		return d
	default:
		return min(d, often)
	}
}

// Stop ends the timer. C may have something in it.
func (t *Timer) Stop() {
	t.timer.Stop()
	if t.alarm != nil {
		t.alarm.Close()
	}
}
