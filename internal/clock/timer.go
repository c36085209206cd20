package clock

import "time"

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
