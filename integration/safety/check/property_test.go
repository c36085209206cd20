package check_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/safety/check"
	"github.com/leasefence/leasefence/integration/safety/history"
)

const seeds = 40

// What a run without bugs leaves is passed.
func TestCheck_goodHistories(t *testing.T) {
	for seed := range uint64(seeds) {
		report := check.Check(good(seed, 150))
		require.Empty(t, report.Violations, "seed %d", seed)
		require.Empty(t, report.Malformed, "seed %d", seed)
		require.Greater(t, report.Count("windows of registers for porcupine"), int64(2), "nothing was cut")
	}
}

// corruption is a bug, as it shows in a history. It changes one thing, and returns nil if there is no place for it.
type corruption struct {
	invariant string
	do        func(rng *rand.Rand, events []history.Event) []history.Event
}

// one picks an event at random, -1 if there is none.
func one(rng *rand.Rand, events []history.Event, fits func(history.Event) bool) int {
	var all []int
	for n, e := range events {
		if fits(e) {
			all = append(all, n)
		}
	}
	if len(all) == 0 {
		return -1
	}
	return all[rng.IntN(len(all))]
}

// edit is a corruption at one event, the n-th.
func edit(fits func(history.Event) bool, do func(events []history.Event, n int) []history.Event) func(*rand.Rand, []history.Event) []history.Event {
	return func(rng *rand.Rand, events []history.Event) []history.Event {
		n := one(rng, events, fits)
		if n < 0 {
			return nil
		}
		return do(events, n)
	}
}

// change is a corruption of one event.
func change(fits func(history.Event) bool, do func(e *history.Event)) func(*rand.Rand, []history.Event) []history.Event {
	return edit(fits, func(events []history.Event, n int) []history.Event {
		do(&events[n])
		return events
	})
}

// insert is a corruption that adds an event.
func insert(fits func(history.Event) bool, add func(e history.Event) history.Event) func(*rand.Rand, []history.Event) []history.Event {
	return edit(fits, func(events []history.Event, n int) []history.Event { return slices.Insert(events, n+1, add(events[n])) })
}

func kind(k history.Kind) func(history.Event) bool {
	return func(e history.Event) bool { return e.Kind == k }
}

func applied(v history.Verb) func(history.Event) bool {
	return func(e history.Event) bool { return e.Kind == history.Apply && e.Outcome == history.OK && e.Verb == v }
}

func refused(e history.Event) bool { return e.Kind == history.Apply && e.Outcome == history.Refused }

// exclusion is I3, and I8 for elections.
const exclusion = "I3 or I8"

var corruptions = map[string]corruption{
	"a stale write is accepted": {"I1", change(refused, func(e *history.Event) { e.Outcome, e.Token = history.OK, 1 })},
	"a token is refused that is not stale": {"I1", change(applied(history.Add),
		func(e *history.Event) { e.Outcome = history.Refused })},
	"a token is accepted without one": {"I1", change(applied(history.Claim), func(e *history.Event) { e.Token = 0 })},
	"a token goes back":               {"I2", change(kind(history.Grant), func(e *history.Event) { e.Token-- })},
	"a token is too large":            {"I2", change(kind(history.Grant), func(e *history.Event) { e.Token += 1 << 20 })},
	"the watch has seen another key":  {"I2", change(kind(history.Grant), func(e *history.Event) { e.Key += "x" })},
	"a lease is counted from the answer": {exclusion, change(
		func(e history.Event) bool { return e.Kind == history.Renewed && e.At > 2*time.Second },
		func(e *history.Event) { e.Value = "1800ms" })},
	"a handle outlives its release": {exclusion, insert(kind(history.Released), func(e history.Event) history.Event {
		return history.Event{At: e.At + time.Nanosecond, Kind: history.Live, Op: e.Op}
	})},
	"a handle comes back": {exclusion, insert(kind(history.Lost), func(e history.Event) history.Event {
		return history.Event{At: e.At + time.Nanosecond, Kind: history.Live, Op: e.Op}
	})},
	"a write is applied twice": {"I5", insert(applied(history.Write), func(e history.Event) history.Event { return e })},
	// With the newest token, and its writer was told that it was refused.
	"a refused write is applied":        {"I5", change(refused, func(e *history.Event) { e.Outcome, e.Highest = history.OK, e.Token })},
	"an increment is lost":              {"I4", change(applied(history.Increment), func(e *history.Event) { e.Outcome = history.Failed })},
	"an element is lost":                {"I4", change(applied(history.Add), func(e *history.Event) { e.Outcome = history.Failed })},
	"a read is old":                     {"I4", oldRead},
	"a key is deleted under its handle": {"I6", deletedEarly},
	// Whoever came behind that key could not have been first, which is another violation.
	"a key is left": {"I7", edit(kind(history.Delete), func(events []history.Event, n int) []history.Event {
		return slices.Delete(events, n, n+1)
	})},
	"a waiter is never served": {"I7", insert(kind(history.Released), func(e history.Event) history.Event {
		return history.Event{At: e.At, Kind: history.Enter, Op: 1 << 40, Actor: "client 9/worker 1", Name: "name0"}
	})},
	"an observer goes back":                {"I8", insert(kind(history.Observe), func(e history.Event) history.Event { e.Token--; e.At++; return e })},
	"an observer sees what nobody was":     {"I8", change(kind(history.Observe), func(e *history.Event) { e.Token += 1 << 20 })},
	"everybody waits and nobody is served": {"I7", stalled},
	"two are live":                         {"I3", twoLive},
}

// oldRead tells a reader what the resource did not read.
func oldRead(rng *rand.Rand, events []history.Event) []history.Event {
	read := one(rng, events, applied(history.Read))
	for n := read; n < len(events); n++ {
		if e := &events[n]; e.Kind == history.Answer && e.Request == events[read].Request && e.Outcome == history.OK {
			e.Value = "old"
			return events
		}
	}
	return nil
}

// deletedEarly has the watch tell of a release before the handle was live last.
func deletedEarly(rng *rand.Rand, events []history.Event) []history.Event {
	n := one(rng, events, kind(history.Live))
	grant := slices.IndexFunc(events, func(e history.Event) bool { return e.Kind == history.Grant && e.Op == events[n].Op })
	for k := n; k < len(events); k++ {
		if e := &events[k]; e.Kind == history.Delete && e.Key == events[grant].Key {
			e.At = events[n].At - time.Nanosecond
			return events
		}
	}
	return nil
}

// stalled moves everything from some grant on to later.
func stalled(rng *rand.Rand, events []history.Event) []history.Event {
	n := one(rng, events, kind(history.Grant))
	for k := n; k < len(events); k++ {
		events[k].At += 8 * time.Second
	}
	return events
}

// twoLive has a lock's handle be live a little longer than until the next one's last moment.
func twoLive(rng *rand.Rand, events []history.Event) []history.Event {
	live := func(e history.Event) bool { return e.Kind == history.Live }
	n := one(rng, events, live)
	name := func(op int64) string {
		return events[slices.IndexFunc(events, func(e history.Event) bool { return e.Kind == history.Enter && e.Op == op })].Name
	}
	for k := n + 1; k < len(events); k++ {
		if live(events[k]) && events[k].Op != events[n].Op && name(events[k].Op) == name(events[n].Op) && name(events[n].Op) != "name3" {
			// Its own end is taken away: a handle that came back is another violation.
			op := events[n].Op
			events = slices.Insert(events, k+1, history.Event{At: events[k].At, Kind: history.Live, Op: op})
			return slices.DeleteFunc(events, func(e history.Event) bool {
				return e.Op == op && (e.Kind == history.Lost || e.Kind == history.Released)
			})
		}
	}
	return nil
}

// Any one of these bugs is found, wherever it shows.
func TestCheck_findsOneCorruption(t *testing.T) {
	for name, c := range corruptions {
		t.Run(name, func(t *testing.T) {
			found := 0
			for seed := range uint64(seeds) {
				rng := rand.New(rand.NewPCG(seed, 2))
				events := c.do(rng, good(seed, 10))
				if events == nil {
					continue
				}
				found++
				report := check.Check(events)
				require.True(t, violates(report, c.invariant), "seed %d: want %s, got %v", seed, c.invariant, report.Violations)
			}
			require.Positive(t, found)
		})
	}
}

// violates reports whether one of the invariants was found to be violated.
func violates(r check.Report, invariant string) bool {
	return slices.ContainsFunc(r.Violations, func(v check.Violation) bool { return strings.Contains(invariant, v.Invariant) })
}
