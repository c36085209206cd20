package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// turn returns a round of one second with ops operations and two latencies.
func turn(ops, ms1, ms2 int) sample {
	return sample{ops: ops, elapsed: time.Second, latencies: []time.Duration{
		time.Duration(ms1) * time.Millisecond, time.Duration(ms2) * time.Millisecond,
	}}
}

// Contenders are compared within each round, so that a machine which is slow for one round changes little.
func TestResult_comparesWithinRounds(t *testing.T) {
	r := &result{scenario: &scenario{leastShare: 0.5}}
	r.rounds = [roles][]sample{
		ours:  {turn(60, 2, 8), turn(6, 20, 80), turn(45, 2, 8), turn(70, 2, 8)},
		limit: {turn(100, 1, 4), turn(10, 10, 10), turn(100, 1, 1), turn(100, 1, 1)},
		peer:  {turn(30, 4, 46), turn(3, 40, 460), turn(15, 4, 46), turn(35, 4, 46)},
	}
	requireMiddles := func(by figure, share, times float64) {
		r.by = by
		c := r.comparisons()
		require.InDelta(t, share, c[0].middle, 1e-9)
		require.InDelta(t, times, c[1].middle, 1e-9)
	}
	requireMiddles(byRate, 0.6, 2)
	requireMiddles(byMean, 0.5, 5)
	requireMiddles(byMedian, 0.5, 2)
	share := r.comparisons()[0]
	require.Equal(t, []float64{0.5, 0.5}, []float64{share.least, share.most})
	require.Equal(t, "50 % (goal 50 %: met)", share.String())
	share.goal = 0.51
	require.Equal(t, "50 % (goal 51 %: missed)", share.String())
	require.Equal(t, "2.00 x", r.comparisons()[1].String())
}

func TestExclusive_seesAnOverlap(t *testing.T) {
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	require.NoError(t, exclusive([]stay{{0, at(0), at(5)}, {1, at(5), at(9)}}))
	require.ErrorContains(t, exclusive([]stay{{0, at(0), at(5)}, {1, at(4), at(9)}}), "two held the lock at once")
}
