package main

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
)

const rowFormat = "%-22s %-10s %8s %8s %8s %8s %8s %8s %8s %8s\n"

// table writes what a run gives, as it comes. The first error of the writer stays; what comes after it is dropped.
type table struct {
	w   io.Writer
	err error
}

func (t *table) printf(format string, args ...any) {
	if t.err == nil {
		_, t.err = fmt.Fprintf(t.w, format, args...)
	}
}

func (t *table) head() {
	t.printf(rowFormat, "scenario", "", "ops", "ops/s", "mean ms", "p50 ms", "p99 ms", "req/op", "comm/op", "fsync/op")
}

// result writes the rows of one result: ours, theirs, the ratio, and what else there is to say.
func (t *table) result(r *result) {
	name := r.Scenario
	if r.Line != "" {
		name += " " + r.Line
	}
	t.figures(name, "leasefence", r.Ours)
	if r.Theirs != nil {
		t.figures("  latency: "+r.Latency, r.Peer, *r.Theirs)
		t.printf(rowFormat, "", "ratio", "", times(r.Ratios.Rate), times(r.Ratios.Mean), times(r.Ratios.P50), times(r.Ratios.P99),
			times(r.Ratios.Requests), times(r.Ratios.Commits), times(r.Ratios.Fsyncs))
	}
	t.unsteady("leasefence", r.Ours)
	if r.Theirs != nil {
		t.unsteady(r.Peer, *r.Theirs)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Ours.Extra)) {
		t.printf("  %s: leasefence %s", name, digits(r.Ours.Extra[name]))
		if r.Theirs != nil {
			t.printf(", %s %s", r.Peer, digits(r.Theirs.Extra[name]))
		}
		t.printf("\n")
	}
	if r.Floor != nil {
		t.printf("  floor: release %s ms, acquisition %s ms\n", digits(r.Floor.Release), digits(r.Floor.Acquire))
	}
	for _, o := range r.Goals {
		t.printf("  goal %s: %s, limit %s: %s\n", o.Goal, digits(o.Value), digits(o.Limit), o.verdict())
	}
	t.printf("\n")
}

func (t *table) figures(name, who string, f figures) {
	t.printf(rowFormat, name, who, fmt.Sprint(f.Operations), digits(f.PerSecond), latency(f.Mean), latency(f.P50), latency(f.P99),
		digits(f.Requests), digits(f.Commits), digits(f.Fsyncs))
}

// unsteady warns of rounds that differ much: the machine may have had other work.
func (t *table) unsteady(who string, f figures) {
	const much = 1.5
	rounds := slices.Sorted(slices.Values(f.RoundsPerSec))
	least, most := quantile(rounds, 0.25), quantile(rounds, 0.75)
	if most > much*least {
		t.printf("  rounds differ: %s %s to %s ops/s\n", who, digits(least), digits(most))
	}
}

// times writes a ratio, if there is one.
func times(v float64) string {
	if v == 0 {
		return "-"
	}
	return digits(v) + "x"
}

// latency writes milliseconds, if there are any.
func latency(ms float64) string {
	if ms == 0 {
		return "-"
	}
	return digits(ms)
}

// digits writes three significant digits, or all before the point.
func digits(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

// summary counts the goals.
func (t *table) summary(results []*result) {
	met, all := 0, 0
	for _, r := range results {
		for _, o := range r.Goals {
			all++
			if o.Met {
				met++
			}
		}
	}
	t.printf("goals met: %d of %d\n", met, all)
}

// list writes the scenarios and their goals.
func (t *table) list(all []scenario) {
	for _, sc := range all {
		t.printf("%-16s %s\n", sc.name, sc.what)
		for _, g := range sc.goals {
			text := g.text
			if g.line != "" {
				text = g.line + ": " + text
			}
			t.printf("%-16s   goal: %s\n", "", text)
		}
	}
}
