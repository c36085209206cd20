package main

import (
	"fmt"
	"io"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/version"
)

const rowFormat = "  %-12s %8s %8s %8s %8s %8s %8s %8s %10s %10s %8s\n"

// table writes results as they come. It keeps the writer's first error and writes nothing after that.
type table struct {
	w   io.Writer
	err error
}

func (t *table) printf(format string, args ...any) {
	if t.err == nil {
		_, t.err = fmt.Fprintf(t.w, format, args...)
	}
}

func (t *table) head(d *disk) {
	t.printf("etcd %s, CPUs: %d, Go: %s, data in %s, a commit takes %s ms\n\n",
		version.Version, runtime.NumCPU(), runtime.Version(), d.dir, digits(milliseconds(d.commit)))
	t.printf(rowFormat, "per op", "ops/s", "mean ms", "p50 ms", "p99 ms", "requests", "commits", "fsyncs",
		"client µs", "server µs", "allocs")
}

// result writes a row for each contender, its extra figures, and the comparisons.
func (t *table) result(r *result) {
	t.printf("%s: %s; latency: %s\n", r.title(r.name), r.what, r.unit)
	for who, rounds := range r.rounds {
		f := summarize(rounds)
		t.printf(rowFormat, roleNames[who], digits(f.perSecond), latency(f.mean), latency(f.p50), latency(f.p99),
			digits(f.cost[requests]), digits(f.cost[commits]), digits(f.cost[fsyncs]),
			digits(1e6*f.cost[clientCPU]), digits(1e6*f.cost[serverCPU]), digits(f.cost[allocs]))
		for _, name := range slices.Sorted(maps.Keys(f.extra)) {
			t.printf("    %s: %s\n", name, digits(f.extra[name]))
		}
	}
	for _, c := range r.comparisons() {
		t.printf("  %s: %s; rounds: %s to %s\n", c.name, c, c.write(c.least), c.write(c.most))
	}
	t.printf("\n")
}

// summary writes a Markdown table that compares the folders, and the number of goals that are met.
func (t *table) summary(disks []*disk) {
	t.printf("| what | share of the limit | times the peer |\n|---|---|---|\n")
	for i, r := range disks[0].results {
		t.printf("| %s", r.title(r.what))
		for column := range r.comparisons() {
			var cells []string
			for _, d := range disks {
				cells = append(cells, d.results[i].comparisons()[column].String())
			}
			t.printf(" | %s", strings.Join(cells, " / "))
		}
		t.printf(" |\n")
	}
	t.printf("\n")
	for _, d := range disks {
		met, all := 0, 0
		for _, r := range d.results {
			for _, c := range r.comparisons() {
				if c.goal > 0 {
					all++
					if c.met() {
						met++
					}
				}
			}
		}
		t.printf("%s, a commit takes %s ms: goals met: %d of %d\n", d.dir, digits(milliseconds(d.commit)), met, all)
	}
}

// latency formats milliseconds; 0 means that there are none.
func latency(ms float64) string {
	if ms == 0 {
		return "-"
	}
	return digits(ms)
}

// digits formats a number with three significant digits, or all digits before the point.
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
