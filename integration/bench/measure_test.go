package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestQuantile(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(i + 1)
	}
	for _, tt := range []struct {
		values []time.Duration
		q      float64
		want   time.Duration
	}{
		{[]time.Duration{}, 0.5, 0},
		{hundred[:1], 0, 1},
		{hundred[:1], 1, 1},
		{hundred[:2], 0.5, 1},
		{hundred[:3], 0.5, 2},
		{hundred, 0.5, 50},
		{hundred, 0.99, 99},
		{hundred, 0.995, 100},
		{hundred, 1, 100},
	} {
		require.Equal(t, tt.want, quantile(tt.values, tt.q), "%d values, %g", len(tt.values), tt.q)
	}
}

func TestMedian_anyOrder(t *testing.T) {
	require.InDelta(t, 2.0, median([]time.Duration{3 * time.Millisecond, time.Millisecond, 2 * time.Millisecond}), 1e-9)
}

func TestSummarize_takesRoundsTogether(t *testing.T) {
	f := summarize([]sample{{
		ops: 10, elapsed: time.Second, latencies: []time.Duration{4 * time.Millisecond, 2 * time.Millisecond},
		cost: counters{unary: 20, watches: 10, commits: 20, fsyncs: 5}, extra: map[string]float64{"x": 1},
	}, {
		ops: 30, elapsed: time.Second, latencies: []time.Duration{3 * time.Millisecond},
		cost: counters{unary: 60, watches: 30, commits: 60, fsyncs: 15}, extra: map[string]float64{"x": 3},
	}})
	require.Equal(t, figures{
		Operations: 40, Seconds: 2, PerSecond: 20, RoundsPerSec: []float64{10, 30},
		Mean: 3, P50: 3, P90: 4, P99: 4, Max: 4,
		Requests: 3, Unary: 2, Watches: 1, Commits: 2, Fsyncs: 0.5,
		Extra: map[string]float64{"x": 2},
	}, f)
}

func TestRatios_areOursByTheirs(t *testing.T) {
	r := newRatios(figures{PerSecond: 50, P50: 1, P99: 3}, figures{PerSecond: 5, P50: 2, P99: 2})
	require.Equal(t, &ratios{Rate: 10, P50: 0.5, P99: 1.5}, r)
}
