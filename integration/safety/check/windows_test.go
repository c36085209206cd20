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

// access returns the k-th access to a register, a read or a write of a number. There is one access every 10 ms.
func access(k, value int, read bool) call {
	verb := history.Write
	if read {
		verb = history.Read
	}
	return call{k * 10, k*10 + 5, verb, fmt.Sprint(value), history.OK, nil}
}

// A wrong read is found where the history of a register is cut, and on both sides of the cut.
func TestCheck_registerAcrossWindows(t *testing.T) {
	// The resource records nothing: only its callers do.
	accesses := func(wrong int) []history.Event {
		var all []call
		for k := range 250 {
			c := access(k, k/2, k%2 == 1)
			if k == wrong {
				c.value = fmt.Sprint(k/2 - 1)
			}
			all = append(all, c)
		}
		return calls(all...)
	}
	report := check.Check(accesses(-1))
	require.Empty(t, report.Violations)
	require.Equal(t, int64(3), report.Count("windows of registers for porcupine"))
	for wrong := 91; wrong < 110; wrong += 2 {
		require.Equal(t, []string{"I4/register"}, checkers(check.Check(accesses(wrong))), "read %d", wrong)
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

// Two writes that overlap, or that only meet, may take effect in either order, also where the history could be cut.
func TestCheck_registerIsNotCutInAnOverlap(t *testing.T) {
	const met, apart = 0, -1
	for _, c := range []struct {
		name  string
		first int // how many accesses the longer one comes before the last that it overlaps with
		by    int // how many ms it lasts after that one was sent
		legal bool
	}{
		{"they overlap", 1, 3, true},
		{"they meet", 1, met, true},
		{"they do not", 1, apart, false},
		{"a long one overlaps with many", 50, 3, true},
		{"a long one meets the last of many", 50, met, true},
		{"a long one overlaps with all but the last", 50, apart, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			for last := 95; last < 106; last++ { // the last access that the longer one overlaps with
				first := last - c.first
				var all []call
				for k := range 150 {
					all = append(all, access(k, k, false))
				}
				all[first].to = all[last].from + c.by
				// The write that was sent first took effect last.
				all[last+1] = access(last+1, first, true)
				got := checkers(check.Check(calls(all...)))
				if c.legal {
					require.Empty(t, got, "%d", last)
				} else {
					require.Equal(t, []string{"I4/register"}, got, "%d", last)
				}
			}
		})
	}
}
