package main

import (
	"fmt"
	"slices"
	"time"
)

// scenarios are all there are, in the order in which they run.
func scenarios() []scenario {
	return slices.Concat(contended(), []scenario{{
		name: "uncontended", what: "1 goroutine locks and unlocks",
		latency: "pair", charted: chartMedian, measure: pairsOfOwners(1), blocks: 8,
		goals: []goal{medianOf(1.05)},
	}}, owned(), large(), elections())
}

// contended are those in which many want one lock.
func contended() []scenario {
	all := []scenario{{
		name: "turns2", what: "2 clients take turns on one lock, with nothing to do in between",
		latency: "turn", measure: turnsOfClients(2), floor: true,
		goals: []goal{rate(25, "turns"), medianNearFloor(1)},
	}, {
		name: "turns2-load", what: "turns2 while a third client does 1,000 other writes a second",
		latency: "turn", measure: underLoad(1000, turnsOfClients(2)),
		goals: []goal{rate(15, "turns")},
	}}
	for _, section := range []time.Duration{
		5 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond, 200 * time.Millisecond,
	} {
		all = append(all, scenario{
			name: "handover" + section.String(), what: fmt.Sprintf("2 clients take turns of %s on one lock", section),
			latency: "hand-over", charted: chartMean, measure: handover(section), floor: true, section: section,
			goals: []goal{medianNearFloor(0)},
		})
	}
	for _, clients := range []struct {
		n     int
		least float64
	}{{8, 8}, {32, 2}} {
		all = append(all, scenario{
			name: fmt.Sprintf("clients%d", clients.n), what: fmt.Sprintf("%d clients take turns on one lock", clients.n),
			latency: "turn", measure: turnsOfClients(clients.n),
			goals: []goal{rate(clients.least, "turns")},
		})
	}
	return append(all, scenario{
		name: "goroutines64", what: "64 goroutines of one process take turns on one lock; the mutex needs a session for each",
		latency: "turn", measure: turnsOfGoroutines(64),
		goals: []goal{rate(5, "turns")},
	})
}

// owned are those in which one process wants many locks.
func owned() []scenario {
	var all []scenario
	for _, own := range []struct {
		n     int
		least float64
	}{{16, 1.5}, {64, 2.5}, {256, 4}, {1024, 4}} {
		all = append(all, scenario{
			name: fmt.Sprintf("own%d", own.n), what: fmt.Sprintf("%d goroutines of one process, each on a lock of its own", own.n),
			latency: "pair", measure: pairsOfOwners(own.n),
			goals: []goal{rate(own.least, "pairs"), tailNoWorse()},
		})
	}
	return append(all, scenario{
		name: "own256-session", what: "own256, where the mutex gets a new session for each pair, as most tutorials show it",
		latency: "pair", measure: pairsOfOwners(256), peer: mutexPerSession, rests: true,
		goals: []goal{rate(15, "pairs")},
	})
}

// large are those about large numbers.
func large() []scenario {
	return []scenario{{
		name: "hold50000", what: "one process takes 50,000 locks (-short: 2,000), holds them for 3 TTLs of 10 s (-short: one of 2 s) and lets go",
		latency: "call", measure: holdMany, most: 2, rests: true,
		goals: []goal{
			rate(4, "acquisitions").on("acquire"),
			rate(4, "releases").on("release"),
			extra("renewals off from one per TTL/3", 1).on("acquire"),
			extra("heap of a held lock, bytes", 2048).on("acquire"),
		},
	}, {
		name: "herd", what: "clients that wait in line get the lock once each: 200 (-short: 20) beside 2",
		latency: "hand-over", charted: chartMedian, measure: herd, most: 1,
		goals: []goal{extra("requests/hand-over, against 2 waiting", 1.1).on("many waiting")},
	}, {
		name: "rate", what: "10,000 acquisitions and releases a second are offered on locks of their own",
		latency: "acquisition", charted: chartMedian, measure: openLoop,
		goals: []goal{
			reference("reference: 10,000 operations/s (to 1 %)", func(f figures) float64 { return f.PerSecond }, 0.99*offered, false),
			reference("reference: p50 below 5 ms", func(f figures) float64 { return f.P50 }, 5, true),
			reference("reference: p99 below 20 ms", func(f figures) float64 { return f.P99 }, 20, true),
		},
	}}
}

// elections are those of leaders: a turn is a leadership there.
func elections() []scenario {
	var all []scenario
	for _, term := range []time.Duration{5 * time.Millisecond, 200 * time.Millisecond} {
		all = append(all, scenario{
			name: "resign" + term.String(), what: fmt.Sprintf("2 candidates lead for %s in turn: from resigning to the next one leading", term),
			latency: "change", charted: chartMean, measure: handover(term), floor: true, section: term,
			ours: electionOfOurs, peer: electionOfTheirs,
			goals: []goal{medianOfCommits(3)},
		})
	}
	return append(all, scenario{
		name: "changes2", what: "2 candidates resign and campaign again without pause",
		latency: "change", measure: turnsOfClients(2), ours: electionOfOurs, peer: electionOfTheirs,
		goals: []goal{rate(20, "changes")},
	}, scenario{
		name: "crash", what: "100 leaders (-short: 5) with a TTL of 2 s are cut off at once: until the next one leads, each on its own",
		latency: "change", charted: chartMedian, measure: crash, most: 2, ours: electionOfOurs, peer: electionOfTheirs,
		goals: []goal{{
			text:  "p99 (ms) at most the TTL + 1 s",
			value: func(r *result) float64 { return r.Ours.P99 },
			limit: constant(float64((crashTTL + time.Second).Milliseconds())), most: true,
		}},
	})
}
