package clock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/clock"
)

// alone is the host's boot clock with an alarm that rings for the test too: the Go timer beside it cannot be what did.
func alone(t *testing.T) (c clock.Clock, rang <-chan struct{}) {
	t.Helper()
	ch := make(chan struct{}, 16)
	c = clock.System
	alarm := c.Alarm
	c.Alarm = func(ring func()) clock.Alarm {
		a := alarm(func() {
			ch <- struct{}{}
			ring()
		})
		require.NotNil(t, a, "the kernel refuses it")
		return a
	}
	return c, ch
}

// The kernel's own alarm: it goes off no earlier than it was set for, can be set again, sooner or later, and ends.
func TestTimer_alarmOfTheHost(t *testing.T) {
	c, rang := alone(t)
	began := c.Now()
	timer := c.NewTimer(time.Hour)
	timer.Reset(20 * time.Millisecond)
	<-rang
	require.GreaterOrEqual(t, c.Since(began), 20*time.Millisecond)
	<-timer.C

	timer.Reset(0)
	<-rang
	<-timer.C

	began = c.Now()
	timer.Reset(time.Hour)
	timer.Reset(30 * time.Millisecond)
	<-rang
	require.GreaterOrEqual(t, c.Since(began), 30*time.Millisecond)

	timer.Reset(time.Hour)
	timer.Stop() // while somebody reads
	require.Empty(t, rang)
}

// An alarm that has gone off just before the end does not disturb it.
func TestTimer_Stop_inTheRush(*testing.T) {
	c := clock.System
	for i := range 200 {
		timer := c.NewTimer(time.Duration(i%4) * 10 * time.Microsecond)
		if i%2 == 0 {
			<-timer.C
		}
		timer.Stop()
	}
}
