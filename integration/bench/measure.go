package main

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// sample is what one round of one implementation gave, for one line of a scenario.
type sample struct {
	line      string // tells the lines of a scenario apart; empty if there is one
	ops       int
	elapsed   time.Duration
	latencies []time.Duration
	cost      counters
	extra     map[string]float64
}

// note adds an extra figure.
func (s *sample) note(name string, value float64) {
	if s.extra == nil {
		s.extra = map[string]float64{}
	}
	s.extra[name] = value
}

// figures are all samples of one implementation on one line taken together.
type figures struct {
	Operations   int                `json:"operations"`
	Seconds      float64            `json:"seconds"`
	PerSecond    float64            `json:"per_second"`
	RoundsPerSec []float64          `json:"per_second_of_each_round"`
	Mean         float64            `json:"mean_ms"`
	P50          float64            `json:"p50_ms"`
	P90          float64            `json:"p90_ms"`
	P99          float64            `json:"p99_ms"`
	Max          float64            `json:"max_ms"`
	Requests     float64            `json:"requests_per_operation"`
	Unary        float64            `json:"unary_requests_per_operation"`
	Watches      float64            `json:"watch_requests_per_operation"`
	Commits      float64            `json:"commits_per_operation"`
	Fsyncs       float64            `json:"fsyncs_per_operation"`
	Extra        map[string]float64 `json:"extra,omitempty"` // means over the rounds
}

// summarize takes the samples of all rounds together.
func summarize(samples []sample) figures {
	var (
		f    figures
		all  []time.Duration
		cost counters
		took time.Duration
	)
	extras := map[string][]float64{}
	for _, s := range samples {
		f.Operations += s.ops
		took += s.elapsed
		f.RoundsPerSec = append(f.RoundsPerSec, float64(s.ops)/s.elapsed.Seconds())
		all = append(all, s.latencies...)
		cost = cost.plus(s.cost)
		for name, value := range s.extra {
			extras[name] = append(extras[name], value)
		}
	}
	slices.Sort(all)
	for _, d := range all {
		f.Mean += milliseconds(d) / float64(len(all))
	}
	f.Seconds = took.Seconds()
	f.PerSecond = float64(f.Operations) / f.Seconds
	f.P50, f.P90, f.P99, f.Max = milliseconds(quantile(all, 0.50)), milliseconds(quantile(all, 0.90)),
		milliseconds(quantile(all, 0.99)), milliseconds(quantile(all, 1))
	ops := float64(f.Operations)
	f.Unary, f.Watches = cost.unary/ops, cost.watches/ops
	f.Requests = f.Unary + f.Watches
	f.Commits, f.Fsyncs = cost.commits/ops, cost.fsyncs/ops
	for name, values := range extras {
		if f.Extra == nil {
			f.Extra = map[string]float64{}
		}
		f.Extra[name] = mean(values)
	}
	return f
}

// quantile is the smallest value that at least the share q of all values do not exceed. The values are in order; of none
// it is 0.
func quantile[T cmp.Ordered](sorted []T, q float64) (value T) {
	if len(sorted) == 0 {
		return value
	}
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}

// median of values in any order, in milliseconds.
func median(values []time.Duration) float64 {
	return milliseconds(quantile(slices.Sorted(slices.Values(values)), 0.5))
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}
