package check_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/safety/check"
	"github.com/leasefence/leasefence/integration/safety/history"
)

const ms = time.Millisecond

// turnsOf returns a history of one lock with n turns of 10 ms. It has no watch, no renewals and no resource, so only
// the sweeps over acquisitions have something to check.
func turnsOf(n int, token func(k int) fence.Token) []history.Event {
	var events []history.Event
	for k := range n {
		at, op := time.Duration(k)*10*ms, int64(k+1)
		actor := fmt.Sprintf("client %d/worker 1", k)
		events = append(events,
			// All of them wait from the beginning.
			history.Event{At: time.Duration(k), Kind: history.Enter, Op: op, Actor: actor, Name: "a"},
			history.Event{At: at + ms, Kind: history.Grant, Op: op, Actor: actor, Name: "a", Token: token(k)},
			history.Event{At: at + 5*ms, Kind: history.Live, Op: op},
			history.Event{At: at + 6*ms, Kind: history.Release, Op: op},
			history.Event{At: at + 7*ms, Kind: history.Released, Op: op, Outcome: history.OK})
	}
	return events
}

func checkers(r check.Report) []string {
	var all []string
	for _, v := range r.Violations {
		all = append(all, v.Invariant+"/"+v.Checker)
	}
	return slices.Compact(slices.Sorted(slices.Values(all)))
}

// Handles that are live together and tokens that go back are found in every turn.
func TestCheck_turns(t *testing.T) {
	rising := func(k int) fence.Token { return fence.Token(k + 10) }
	require.Empty(t, check.Check(turnsOf(20, rising)).Violations)
	for first := 1; first < 20; first++ {
		back := func(k int) fence.Token {
			if k < first {
				return fence.Token(k + 1000)
			}
			return rising(k)
		}
		require.Equal(t, []string{"I2/intervals"}, checkers(check.Check(turnsOf(20, back))), "tokens go back at %d", first)

		events := turnsOf(20, rising)
		for n := range events {
			if e := &events[n]; e.Op == int64(first) && e.At > time.Duration(first)*10*ms-8*ms {
				e.At += 10 * ms // its live event and its end are now in the next one's turn
			}
		}
		require.Equal(t, []string{"I3/intervals"}, checkers(check.Check(events)), "overlap at %d", first)

		// The overlap is found even if the next handle has no live event.
		events = slices.DeleteFunc(events, func(e history.Event) bool { return e.Kind == history.Live && e.Op == int64(first+1) })
		require.Equal(t, []string{"I3/intervals"}, checkers(check.Check(events)), "overlap at %d", first)
	}
}

// A violation in every turn is reported 20 times, and the others are counted.
func TestCheck_manyViolations(t *testing.T) {
	report := check.Check(turnsOf(100, func(int) fence.Token { return 1 }))
	require.Positive(t, report.More)
	require.Less(t, len(report.Violations), 100)
}

// A holder may learn of its grant at the same time as the next holder, or later. That violates nothing if the first
// handle is not live then.
func TestCheck_grantAnsweredLate(t *testing.T) {
	const late, next = 5, 4
	for _, after := range []time.Duration{0, ms} {
		events := turnsOf(10, func(k int) fence.Token {
			switch k {
			case late:
				k = next
			case next:
				k = late
			}
			return fence.Token(k + 10)
		})
		var granted time.Duration
		for n := range events {
			switch e := &events[n]; {
			case e.Kind == history.Grant && e.Op == next+1:
				granted = e.At
			case e.Kind == history.Grant && e.Op == late+1:
				e.At = granted + after
			}
		}
		events = slices.DeleteFunc(events, func(e history.Event) bool { return e.Kind == history.Live && e.Op == late+1 })
		require.Empty(t, check.Check(events).Violations, "%v after the next grant", after)
	}
}
