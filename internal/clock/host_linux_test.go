package clock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/clock"
)

// heard is the host's clock with an alarm that also rings for the test, which so tells it from the Go timer beside it.
func heard(t *testing.T) (c clock.Clock, rang <-chan struct{}) {
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

// The kernel's alarm goes off no earlier than it was set for, can be set to sooner or later, and can be stopped.
func TestTimer_alarmOfTheHost(t *testing.T) {
	c, rang := heard(t)
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
	timer.Stop() // while the alarm is being read
	require.Empty(t, rang)
}

// Stop returns also if the alarm goes off at the same time.
func TestTimer_Stop_whileTheAlarmGoesOff(*testing.T) {
	c := clock.System
	for i := range 200 {
		timer := c.NewTimer(time.Duration(i%4) * 10 * time.Microsecond)
		if i%2 == 0 {
			<-timer.C
		}
		timer.Stop()
	}
}
