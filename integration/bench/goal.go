package main

import (
	"fmt"
	"math"
)

// goal is a bound on a figure that a scenario gives.
type goal struct {
	line  string // of the scenario; empty if there is one
	text  string
	value func(r *result) float64 // NaN where a figure is missing
	limit func(r *result) float64
	most  bool // the value is to be at most the limit, else at least
	// factor is the limit of our advantage over the peer in the figure that is charted; nil if the goal is about another.
	factor func(limit float64) float64
}

// outcome is a goal with its figures. It is information only: figures depend on the machine.
type outcome struct {
	Goal  string  `json:"goal"`
	Value float64 `json:"value"`
	Limit float64 `json:"limit"`
	Met   bool    `json:"met"`
	// Missing: there is no value or no limit; both are 0 then.
	Missing bool `json:"missing,omitempty"`

	factor float64
}

// verdict is met or missed, and says so where there are no figures for either.
func (o outcome) verdict() string {
	switch {
	case o.Missing:
		return "no figures"
	case o.Met:
		return "met"
	default:
		return "missed"
	}
}

func (g goal) judge(r *result) outcome {
	o := outcome{Goal: g.text, Value: g.value(r), Limit: g.limit(r)}
	if g.most {
		o.Met = o.Value <= o.Limit
	} else {
		o.Met = o.Value >= o.Limit
	}
	if math.IsNaN(o.Value + o.Limit) { // JSON has no such number
		return outcome{Goal: g.text, Missing: true}
	}
	if g.factor != nil {
		o.factor = g.factor(o.Limit)
	}
	return o
}

func constant(v float64) func(*result) float64 { return func(*result) float64 { return v } }

// ratios are NaN without a peer.
func (r *result) ratios() ratios {
	if r.Ratios == nil {
		return ratios{Rate: math.NaN(), P50: math.NaN(), P99: math.NaN()}
	}
	return *r.Ratios
}

// rate asks for a multiple of the peer's operations per second.
func rate(least float64, unit string) goal {
	return goal{
		text:  fmt.Sprintf("at least %gx %s/s", least, unit),
		value: func(r *result) float64 { return r.ratios().Rate },
		limit: constant(least), factor: func(limit float64) float64 { return limit },
	}
}

// medianOf asks for a part or multiple of the peer's median latency.
func medianOf(most float64) goal {
	return goal{
		text:  fmt.Sprintf("median at most %gx", most),
		value: func(r *result) float64 { return r.ratios().P50 },
		limit: constant(most), most: true, factor: func(limit float64) float64 { return 1 / limit },
	}
}

// tailNoWorse asks for a p99 that is not above the peer's.
func tailNoWorse() goal {
	return goal{
		text:  "p99 at most 1x",
		value: func(r *result) float64 { return r.ratios().P99 },
		limit: constant(1), most: true,
	}
}

// medianNearFloor asks for a median of at most twice the floor of a release, and so many acquisitions on top.
func medianNearFloor(acquires float64) goal {
	text := "p50 (ms) at most 2x the floor of a release"
	if acquires > 0 {
		text += fmt.Sprintf(" + %gx that of an acquisition", acquires)
	}
	return goal{
		text:  text,
		value: func(r *result) float64 { return r.Ours.P50 },
		limit: func(r *result) float64 {
			if r.Floor == nil {
				return math.NaN()
			}
			return 2*r.Floor.Release + acquires*r.Floor.Acquire
		},
		most: true,
	}
}

// medianOfCommits asks for a median of at most so many times the floor of an acquisition, which is one commit.
func medianOfCommits(most float64) goal {
	return goal{
		text:  fmt.Sprintf("p50 (ms) at most %gx a commit", most),
		value: func(r *result) float64 { return r.Ours.P50 },
		limit: func(r *result) float64 {
			if r.Floor == nil {
				return math.NaN()
			}
			return most * r.Floor.Acquire
		},
		most: true,
	}
}

// extra asks for a bound on one of our extra figures.
func extra(name string, most float64) goal {
	return goal{
		text: fmt.Sprintf("%s at most %g", name, most),
		value: func(r *result) float64 {
			if v, ok := r.Ours.Extra[name]; ok {
				return v
			}
			return math.NaN()
		},
		limit: constant(most), most: true,
	}
}

// reference is a figure from the field, to read ours beside.
func reference(text string, value func(figures) float64, limit float64, most bool) goal {
	return goal{text: text, value: func(r *result) float64 { return value(r.Ours) }, limit: constant(limit), most: most}
}

// on binds a goal to one line of its scenario.
func (g goal) on(line string) goal {
	g.line = line
	return g
}
