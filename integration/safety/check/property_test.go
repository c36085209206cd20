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

// A history of a run without bugs passes.
func TestCheck_goodHistories(t *testing.T) {
	for seed := range uint64(seeds) {
		report := check.Check(good(seed, 150))
		require.Empty(t, report.Violations, "seed %d", seed)
		require.Empty(t, report.Malformed, "seed %d", seed)
		require.Greater(t, report.Count("windows of registers for porcupine"), int64(2), "no history was cut")
	}
}

// corruption is a bug as it shows in a history. do changes one thing, and returns nil if the history has no place for
// it.
type corruption struct {
	invariant string
	do        func(rng *rand.Rand, events []history.Event) []history.Event
}

// one returns the index of a random event that fits, -1 if there is none.
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

// edit returns a corruption at one event: do gets its index.
func edit(fits func(history.Event) bool, do func(events []history.Event, n int) []history.Event) func(*rand.Rand, []history.Event) []history.Event {
	return func(rng *rand.Rand, events []history.Event) []history.Event {
		n := one(rng, events, fits)
		if n < 0 {
			return nil
		}
		return do(events, n)
	}
}

// change returns a corruption that changes one event.
func change(fits func(history.Event) bool, do func(e *history.Event)) func(*rand.Rand, []history.Event) []history.Event {
	return edit(fits, func(events []history.Event, n int) []history.Event {
		do(&events[n])
		return events
	})
}

// insert returns a corruption that adds an event after one that fits.
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

// exclusion is violated as I3, and in elections as I8.
const exclusion = "I3 or I8"

var corruptions = map[string]corruption{
	"a stale write is accepted": {"I1", change(refused, func(e *history.Event) { e.Outcome, e.Token = history.OK, 1 })},
	"a token that is not stale is refused": {"I1", change(applied(history.Add),
		func(e *history.Event) { e.Outcome = history.Refused })},
	"a claim without a token is accepted": {"I1", change(applied(history.Claim), func(e *history.Event) { e.Token = 0 })},
	"a token goes back":                   {"I2", change(kind(history.Grant), func(e *history.Event) { e.Token-- })},
	"a token is too large":                {"I2", change(kind(history.Grant), func(e *history.Event) { e.Token += 1 << 20 })},
	"the watch saw another key":           {"I2", change(kind(history.Grant), func(e *history.Event) { e.Key += "x" })},
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
	// It has the newest token, but the answer to its writer is a refusal.
	"a refused write is applied":        {"I5", change(refused, func(e *history.Event) { e.Outcome, e.Highest = history.OK, e.Token })},
	"an increment is lost":              {"I4", change(applied(history.Increment), func(e *history.Event) { e.Outcome = history.Failed })},
	"an element is lost":                {"I4", change(applied(history.Add), func(e *history.Event) { e.Outcome = history.Failed })},
	"a read is old":                     {"I4", oldRead},
	"a key is deleted under its handle": {"I6", deletedEarly},
	// The waiters behind that key could not have been first, which is another violation.
	"a key is left": {"I7", edit(kind(history.Delete), func(events []history.Event, n int) []history.Event {
		return slices.Delete(events, n, n+1)
	})},
	"a waiter is never served": {"I7", insert(kind(history.Released), func(e history.Event) history.Event {
		return history.Event{At: e.At, Kind: history.Enter, Op: 1 << 40, Actor: "client 9/worker 1", Name: "name0"}
	})},
	"an observer goes back":                    {"I8", insert(kind(history.Observe), func(e history.Event) history.Event { e.Token--; e.At++; return e })},
	"an observer sees a leader that never was": {"I8", change(kind(history.Observe), func(e *history.Event) { e.Token += 1 << 20 })},
	"everybody waits and nobody is served":     {"I7", stalled},
	"two handles are live":                     {"I3", twoLive},
}

// oldRead changes the answer to a read: it is not what the resource read.
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

// deletedEarly moves the deletion of a key ahead of a live event of its handle.
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

// stalled delays a grant and everything after it.
func stalled(rng *rand.Rand, events []history.Event) []history.Event {
	n := one(rng, events, kind(history.Grant))
	for k := n; k < len(events); k++ {
		events[k].At += 8 * time.Second
	}
	return events
}

// twoLive adds a live event of a lock's handle after a live event of the next handle.
func twoLive(rng *rand.Rand, events []history.Event) []history.Event {
	live := kind(history.Live)
	n := one(rng, events, live)
	name := func(op int64) string {
		return events[slices.IndexFunc(events, func(e history.Event) bool { return e.Kind == history.Enter && e.Op == op })].Name
	}
	for k := n + 1; k < len(events); k++ {
		if live(events[k]) && events[k].Op != events[n].Op && name(events[k].Op) == name(events[n].Op) && name(events[n].Op) != "name3" {
			// The handle's own end is removed: a live event after it is another violation.
			op := events[n].Op
			events = slices.Insert(events, k+1, history.Event{At: events[k].At, Kind: history.Live, Op: op})
			return slices.DeleteFunc(events, func(e history.Event) bool {
				return e.Op == op && (e.Kind == history.Lost || e.Kind == history.Released)
			})
		}
	}
	return nil
}

// Each of these bugs is found at any place of the history.
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

// violates reports whether the report has a violation of one of the invariants.
func violates(r check.Report, invariant string) bool {
	return slices.ContainsFunc(r.Violations, func(v check.Violation) bool { return strings.Contains(invariant, v.Invariant) })
}
