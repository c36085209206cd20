package main

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// role is a contender's role in a scenario.
type role int

const (
	ours  role = iota
	limit      // a bare program, which does the least that a lock on etcd needs: the limit of the machine
	peer
	roles
)

var roleNames = [roles]string{"leasefence", "bare etcd", "concurrency"}

// sample is the result of one round of one contender, for one line of a scenario.
type sample struct {
	line      string // the name of the line; empty if the scenario has one line
	ops       int
	elapsed   time.Duration
	latencies []time.Duration
	cost      cost
	extra     map[string]float64
}

func (s sample) median() time.Duration {
	return quantile(slices.Sorted(slices.Values(s.latencies)), 0.5)
}

// figure is the figure by which contenders are compared.
type figure int

const (
	byRate   figure = iota // operations per second
	byMedian               // of the latencies, if the scenario sets the rate
	byMean                 // the same, if the peer's latencies have two peaks: a median shows only one
)

// of returns the figure of a sample, in a form in which more is better.
func (f figure) of(s sample) float64 {
	switch f {
	case byRate:
		return float64(s.ops) / s.elapsed.Seconds()
	case byMedian:
		return 1 / milliseconds(s.median())
	default:
		return 1 / mean(s.latencies)
	}
}

// figures summarize all rounds of one contender on one line.
type figures struct {
	perSecond      float64
	mean, p50, p99 float64 // milliseconds; 0 without latencies
	cost           cost    // per operation
	extra          map[string]float64
}

func summarize(samples []sample) figures {
	f := figures{extra: map[string]float64{}}
	var (
		all  []time.Duration
		ops  float64
		took time.Duration
	)
	for _, s := range samples {
		ops += float64(s.ops)
		took += s.elapsed
		all = append(all, s.latencies...)
		f.cost = f.cost.plus(s.cost)
		for name, value := range s.extra {
			f.extra[name] += value / float64(len(samples))
		}
	}
	slices.Sort(all)
	f.perSecond = ops / took.Seconds()
	f.mean, f.p50, f.p99 = mean(all), milliseconds(quantile(all, 0.50)), milliseconds(quantile(all, 0.99))
	for i := range f.cost {
		f.cost[i] /= ops
	}
	return f
}

type result struct {
	*scenario
	line   string
	rounds [roles][]sample
}

// title returns the name of the scenario, followed by that of the line if there are several.
func (r *result) title(name string) string {
	if r.line == "" {
		return name
	}
	return name + ", " + r.line
}

// comparison is the ratio of leasefence to another contender, within each round; more is better.
type comparison struct {
	name                string
	least, middle, most float64 // of the rounds; middle is the median
	goal                float64 // 0 if there is none
	write               func(float64) string
}

// comparisons returns the share of the limit and the ratio to the peer. A share of latencies always compares medians.
func (r *result) comparisons() [2]comparison {
	share := comparison{name: "share of the limit", goal: r.leastShare, write: percent}
	times := comparison{name: "times the peer", goal: r.leastTimes, write: times}
	return [2]comparison{r.compare(share, limit, min(r.by, byMedian)), r.compare(times, peer, r.by)}
}

func (r *result) compare(c comparison, who role, by figure) comparison {
	var ratios []float64
	for i, s := range r.rounds[who] {
		ratios = append(ratios, by.of(r.rounds[ours][i])/by.of(s))
	}
	slices.Sort(ratios)
	n := len(ratios)
	c.least, c.middle, c.most = ratios[0], (ratios[(n-1)/2]+ratios[n/2])/2, ratios[n-1]
	return c
}

func (c comparison) met() bool { return c.middle >= c.goal }

// String returns the median ratio and, if there is a goal, whether it is met.
func (c comparison) String() string {
	text := c.write(c.middle)
	if c.goal == 0 {
		return text
	}
	verdict := "missed"
	if c.met() {
		verdict = "met"
	}
	return fmt.Sprintf("%s (goal %s: %s)", text, c.write(c.goal), verdict)
}

func percent(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }
func times(v float64) string   { return digits(v) + " x" }

// quantile returns the smallest value such that at least the share q of all values do not exceed it, and 0 without
// values. The values must be in order.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func mean(values []time.Duration) float64 {
	sum := 0.0
	for _, v := range values {
		sum += milliseconds(v)
	}
	return sum / float64(max(len(values), 1))
}

// scenarios returns all scenarios, in the order in which they run.
func scenarios() []*scenario {
	locks, leaders := slices.Concat(contended(), owned()), elections()
	for _, sc := range locks {
		sc.ours, sc.peer = leasefence, mutex
	}
	for _, sc := range leaders {
		sc.ours, sc.peer = candidates, theirCandidates
	}
	return slices.Concat(locks, leaders)
}

// contended returns the scenarios in which many clients or goroutines want one lock.
func contended() []*scenario {
	all := []*scenario{{
		name: "turns2", what: "2 clients take turns", unit: "turn",
		measure: turns(2, clients), bare: ring, leastShare: 0.9,
	}}
	for _, section := range []time.Duration{
		5 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond, 200 * time.Millisecond,
	} {
		all = append(all, &scenario{
			name: "handover" + section.String(), what: fmt.Sprintf("unlock to next holder, %s sections", section), unit: "hand-over",
			by: byMean, measure: handover(section), bare: ring,
		})
	}
	for _, many := range []struct {
		n     int
		times float64
	}{{8, 8}, {32, 2}} {
		all = append(all, &scenario{
			name: fmt.Sprintf("clients%d", many.n), what: fmt.Sprintf("%d clients take turns", many.n), unit: "turn",
			measure: turns(many.n, clients), bare: ring,
			leastShare: 0.7, leastTimes: many.times,
		})
	}
	return append(all, &scenario{
		name: "goroutines64", what: "64 goroutines take turns", unit: "turn",
		measure: turns(64, goroutines), limit: chain,
	})
}

// owned returns the scenarios in which one process has locks that nobody else wants.
func owned() []*scenario {
	all := []*scenario{{
		name: "uncontended", what: "lock and unlock, uncontended", unit: "pair", by: byMedian,
		measure: pairsOfOwners(1), bare: bareLocks, leastShare: 0.97, blocks: 8,
	}}
	for _, own := range []struct {
		n     int
		times float64
	}{{16, 0}, {64, 0}, {256, 4}, {1024, 4}} {
		all = append(all, &scenario{
			name: fmt.Sprintf("own%d", own.n), what: fmt.Sprintf("%d goroutines, a lock each", own.n), unit: "pair",
			measure: pairsOfOwners(own.n), limit: pairsInGroups(own.n), leastShare: 0.9, leastTimes: own.times,
		})
	}
	return append(all, &scenario{
		name: "hold50000", what: "50,000 locks", unit: "call",
		measure: holdMany, limit: holdInGroups, leastShare: 0.8, most: 2, rests: true,
	})
}

// elections returns the scenarios in which a turn is a leadership.
func elections() []*scenario {
	var all []*scenario
	for _, term := range []time.Duration{5 * time.Millisecond, 200 * time.Millisecond} {
		all = append(all, &scenario{
			name: "resign" + term.String(), what: fmt.Sprintf("leader resigns after %s", term), unit: "change", by: byMean,
			measure: handover(term), bare: ring, leastShare: 0.95,
		})
	}
	return append(all, &scenario{
		name: "changes2", what: "2 candidates lead by turns", unit: "change",
		measure: turns(2, clients), bare: ring, leastShare: 0.9,
	})
}
