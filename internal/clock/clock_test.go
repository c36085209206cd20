package clock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/clock"
)

// A suspension of the host counts as elapsed time.
func TestClock_theLongerElapsedTimeCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var suspended time.Duration
		start := time.Now()
		c := clock.Clock{Boot: func() time.Duration { return time.Hour + time.Since(start) + suspended }}

		i := c.Now()
		time.Sleep(2 * time.Second)
		require.Equal(t, 2*time.Second, c.Since(i))
		suspended = time.Millisecond - 1 // is how far the readings are apart
		require.Equal(t, start.Add(10*time.Second), c.After(i, 10*time.Second))

		suspended = time.Minute
		require.Equal(t, 62*time.Second, c.Since(i))
		require.Equal(t, start.Add(-50*time.Second), c.After(i, 10*time.Second))
	})
}

// Without an alarm, or with one that cannot be set, the timer sends every half second.
func TestTimer_withoutAlarm(t *testing.T) {
	boot := func() time.Duration { return 0 }
	for name, tc := range map[string]struct {
		clock clock.Clock
		want  time.Duration
	}{
		"no boot clock": {clock.Clock{}, time.Minute},
		"no alarm":      {clock.Clock{Boot: boot}, 500 * time.Millisecond},
		"refused":       {clock.Clock{Boot: boot, Alarm: func(func()) clock.Alarm { return nil }}, 500 * time.Millisecond},
		"not set":       {clock.Clock{Boot: boot, Alarm: func(func()) clock.Alarm { return mute(false) }}, 500 * time.Millisecond},
		"set and mute":  {clock.Clock{Boot: boot, Alarm: func(func()) clock.Alarm { return mute(true) }}, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				timer := tc.clock.NewTimer(time.Minute)
				<-timer.C
				require.Equal(t, tc.want, time.Since(began))
				timer.Reset(time.Minute)
				<-timer.C
				require.Equal(t, 2*tc.want, time.Since(began))
				timer.Reset(time.Millisecond)
				<-timer.C
				require.Equal(t, 2*tc.want+time.Millisecond, time.Since(began))
				timer.Reset(time.Minute)
				timer.Stop()
			})
		})
	}
}

// mute is an alarm that never goes off.
type mute bool

func (m mute) Set(time.Duration) bool { return bool(m) }
func (mute) Close()                   {}
