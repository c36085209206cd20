package main

import (
	"bufio"
	"bytes"
	"encoding/xml"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/version"
)

const rowFormat = "  %-12s %8s %8s %8s %8s %8s %8s %8s %10s %10s %8s\n"

// table writes results as they come. It is flushed after each; the writer keeps its first error for that.
type table struct{ *bufio.Writer }

func (t table) printf(format string, args ...any) { _, _ = fmt.Fprintf(t, format, args...) }

func (t table) head(d *disk) {
	t.printf("etcd %s, CPUs: %d, Go: %s, data in %s, a commit takes %s ms\n\n",
		version.Version, runtime.NumCPU(), runtime.Version(), d.dir, digits(milliseconds(d.commit)))
	t.printf(rowFormat, "per op", "ops/s", "mean ms", "p50 ms", "p99 ms", "requests", "commits", "fsyncs",
		"client µs", "server µs", "allocs")
}

// result writes a row for each contender, its extra figures, and the comparisons.
func (t table) result(r *result) {
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
func (t table) summary(disks []*disk) {
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

// The chart's measures, in pixels.
const (
	chartLabels = 310 // the width of the column of labels
	chartBars   = 430
	chartValues = 70
	chartRow    = 24
	chartTop    = 58
	chartBottom = 26
	chartLeft   = 10
)

// chartStyle is readable on white and on black. In a viewer that prefers dark colours the text is brighter.
const chartStyle = `
text { font: 13px system-ui, sans-serif; fill: #24292f; }
.small { font-size: 11px; fill: #6e7781; }
.grid { stroke: #8c959f; stroke-opacity: 0.35; }
.one { stroke: #8c959f; stroke-width: 2; }
.better { fill: #2da44e; }
.worse { fill: #d4632a; }
.goal { stroke: #0969da; stroke-width: 3; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .small { fill: #9198a1; }
  .goal { stroke: #58a6ff; }
}
`

// svg draws the ratios to the peer as bars on a log scale, from the line at 1x.
func svg(title string, results []*result) []byte {
	low, high := 0.5, 10.0
	for _, r := range results {
		c := r.comparisons()[1]
		low, high = min(low, c.middle/1.1), max(high, c.middle*1.1, c.goal*1.1)
	}
	x := func(factor float64) float64 {
		return chartLabels + chartBars*math.Log(factor/low)/math.Log(high/low)
	}
	width, height := chartLabels+chartBars+chartValues, chartTop+chartRow*len(results)+chartBottom
	var out bytes.Buffer
	text := func(class, anchor string, x, y float64, s string) {
		fmt.Fprintf(&out, `<text class="%s" text-anchor="%s" x="%.1f" y="%.1f">`, class, anchor, x, y)
		_ = xml.EscapeText(&out, []byte(s)) // a buffer does not fail
		out.WriteString("</text>\n")
	}
	line := func(class string, x, y1, y2 float64) {
		fmt.Fprintf(&out, "<line class=%q x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", class, x, x, y1, y2)
	}

	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">`+"\n",
		width, height, width, height)
	fmt.Fprintf(&out, "<style>%s</style>\n", chartStyle)
	text("", "start", chartLeft, 16, title)
	text("small", "start", chartLeft, 34, "times better than etcd's concurrency package, log scale; blue: the goal")
	bottom := float64(height - chartBottom)
	for _, tick := range []float64{0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500} {
		if tick < low || tick > high {
			continue
		}
		class := "grid"
		if tick == 1 {
			class = "one"
		}
		line(class, x(tick), chartTop-6, bottom)
		text("small", "middle", x(tick), bottom+16, fmt.Sprintf("%gx", tick))
	}
	for i, r := range results {
		c, y := r.comparisons()[1], float64(chartTop+chartRow*i)
		class, from, to := "better", x(1), x(c.middle)
		if c.middle < 1 {
			class, from, to = "worse", to, from
		}
		of := [...]string{byRate: r.unit + "s/s", byMedian: "median", byMean: "mean"}[r.by]
		text("", "start", chartLeft, y+15, r.title(r.what)+": "+of)
		fmt.Fprintf(&out, "<rect class=%q x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" rx=\"2\"/>\n",
			class, from, y+3, max(to-from, 1), chartRow-8)
		if c.goal > 0 {
			line("goal", x(c.goal), y+1, y+chartRow-3)
		}
		text("", "start", max(to, x(c.goal), x(1))+6, y+15, digits(c.middle)+"x")
	}
	out.WriteString("</svg>\n")
	return out.Bytes()
}
