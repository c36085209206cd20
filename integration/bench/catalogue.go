package main

import (
	"fmt"
	"slices"
	"time"
)

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
		measure: turns(2, clients), limit: with(ring, turns(2, clients)), leastShare: 0.9,
	}}
	for _, section := range []time.Duration{
		5 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond, 200 * time.Millisecond,
	} {
		all = append(all, &scenario{
			name: "handover" + section.String(), what: fmt.Sprintf("unlock to next holder, %s sections", section), unit: "hand-over",
			by: byMean, measure: handover(section), limit: with(ring, handover(section)),
		})
	}
	for _, many := range []struct {
		n     int
		times float64
	}{{8, 8}, {32, 2}} {
		all = append(all, &scenario{
			name: fmt.Sprintf("clients%d", many.n), what: fmt.Sprintf("%d clients take turns", many.n), unit: "turn",
			measure: turns(many.n, clients), limit: with(ring, turns(many.n, clients)),
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
		measure: pairsOfOwners(1), limit: with(bareLocks, pairsOfOwners(1)), leastShare: 0.97, blocks: 8,
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
			measure: handover(term), limit: with(ring, handover(term)), leastShare: 0.95,
		})
	}
	return append(all, &scenario{
		name: "changes2", what: "2 candidates lead by turns", unit: "change",
		measure: turns(2, clients), limit: with(ring, turns(2, clients)), leastShare: 0.9,
	})
}
