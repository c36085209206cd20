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

// turnsOf is a history of one lock, 10 ms each, without a watch: only porcupine and the sweeps have something to look at.
func turnsOf(n int, token func(k int) fence.Token) []history.Event {
	var events []history.Event
	for k := range n {
		at, op := time.Duration(k)*10*ms, int64(k+1)
		actor := fmt.Sprintf("client %d/worker 1", k)
		events = append(events,
			// All wait from the beginning.
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

// What porcupine is to find lies where a history is cut, and on both sides of it.
func TestCheck_lockAcrossWindows(t *testing.T) {
	rising := func(k int) fence.Token { return fence.Token(k + 10) }
	for first := 95; first < 106; first++ {
		report := check.Check(turnsOf(200, rising), check.Options{})
		require.Empty(t, report.Violations)
		require.Equal(t, int64(2), report.Count("windows of locks for porcupine"))

		back := func(k int) fence.Token {
			if k < first {
				return fence.Token(k + 1000)
			}
			return rising(k)
		}
		require.Contains(t, checkers(check.Check(turnsOf(200, back), check.Options{})), "I3/lock", "tokens go back at %d", first)

		events := turnsOf(200, rising)
		for n := range events {
			if e := &events[n]; e.Op == int64(first) && e.At > time.Duration(first)*10*ms-8*ms {
				e.At += 10 * ms // its live event and its end are now in the next one's turn
			}
		}
		require.Equal(t, []string{"I3/intervals", "I3/lock"}, checkers(check.Check(events, check.Options{})), "overlap at %d", first)
	}
}

// A register is read wrongly where its history is cut, and on both sides of it.
func TestCheck_registerAcrossWindows(t *testing.T) {
	// Nothing tells what the resource has applied: only its callers do.
	accesses := func(wrong int) []history.Event {
		var events []history.Event
		for k := range 250 {
			at, value := time.Duration(k)*10*ms, fmt.Sprint(k/2)
			verb := []history.Verb{history.Write, history.Read}[k%2]
			if k == wrong {
				value = fmt.Sprint(k/2 - 1)
			}
			send := history.Event{At: at, Kind: history.Send, Request: int64(k + 1), Name: "a", Verb: verb}
			if verb == history.Write {
				send.Value = value
			}
			events = append(events, send,
				history.Event{At: at + 5*ms, Kind: history.Answer, Request: int64(k + 1), Outcome: history.OK, Value: value})
		}
		return events
	}
	report := check.Check(accesses(-1), check.Options{})
	require.Empty(t, report.Violations)
	require.Equal(t, int64(3), report.Count("windows of registers for porcupine"))
	for wrong := 91; wrong < 110; wrong += 2 {
		require.Equal(t, []string{"I4/register"}, checkers(check.Check(accesses(wrong), check.Options{})), "read %d", wrong)
	}
}

// A lock that nobody can look into is undecided, which is told, and is no violation.
func TestCheck_undecided(t *testing.T) {
	// 40 blind writes and as many reads, all at the same time, of which the last read what nobody wrote.
	var events []history.Event
	for k := range 80 {
		id, value := int64(k+1), fmt.Sprint(k/2)
		verb := []history.Verb{history.Write, history.Read}[k%2]
		events = append(events, history.Event{At: time.Duration(k), Kind: history.Send, Request: id, Name: "a", Verb: verb, Value: value})
		if k == 79 {
			value = "nobody's"
		}
		if verb == history.Read {
			events = append(events, history.Event{At: ms + time.Duration(k), Kind: history.Answer, Request: id, Outcome: history.OK, Value: value})
		}
	}
	report := check.Check(events, check.Options{Timeout: 50 * ms})
	require.Empty(t, report.Violations)
	require.Equal(t, int64(1), report.Count("windows of registers for porcupine"))
	require.Equal(t, int64(1), report.Undecided)
}

// A violation that shows in every turn is told 20 times, and counted.
func TestCheck_manyViolations(t *testing.T) {
	report := check.Check(turnsOf(100, func(int) fence.Token { return 1 }), check.Options{})
	require.Positive(t, report.More)
	require.Less(t, len(report.Violations), 100)
}
