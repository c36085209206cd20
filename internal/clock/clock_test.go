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
