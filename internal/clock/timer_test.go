package clock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/clock"
)

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
