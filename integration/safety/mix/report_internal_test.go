package mix

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// enough returns a report that just reaches all floors.
func enough() *Report {
	r := newReport(1)
	for what, least := range floors {
		r.count(what, least)
	}
	for _, kind := range allKinds() {
		r.Faults[kind] = Struck{Fired: 1}
	}
	return r
}

func TestReport_Missed(t *testing.T) {
	require.Len(t, allKinds(), 40)
	require.Empty(t, enough().Missed())
	for what, lower := range map[string]func(*Report){
		refused:       func(r *Report) { r.count(refused, -1) },
		controlStale:  func(r *Report) { r.count(controlStale, -1) },
		restoredTold:  func(r *Report) { r.count(restoredTold, -1) },
		"never fired": func(r *Report) { r.Faults[allKinds()[7]] = Struck{Missed: 5} },
	} {
		t.Run(what, func(t *testing.T) {
			r := enough()
			lower(r)
			missed := r.Missed()
			require.Len(t, missed, 1)
			require.Contains(t, missed[0], what)
		})
	}
}

func TestReport_listsViolations(t *testing.T) {
	r := enough()
	r.violate(4, "I3", "two at a time")
	r.violate(0, "odd", "?")
	text := r.String()
	for _, want := range []string{"fenced writes", "floor 10000", "violations: 2", "I3       1", "odd      1", "I3, round 4: two at a time"} {
		require.Contains(t, text, want)
	}
}

func TestTape_countsOnlyWritesAtTheFencedResource(t *testing.T) {
	tape := newTape(t.TempDir(), newReport(1))
	for _, e := range []history.Event{
		{Name: "a", Verb: history.Write, Outcome: history.OK},
		{Name: "a", Verb: history.Write, Outcome: history.Refused},
		{Name: "a", Verb: history.Claim, Outcome: history.Refused},
		{Name: "a", Verb: history.Read, Outcome: history.OK},
		{Name: "a" + history.UnfencedMark, Verb: history.Write, Outcome: history.OK},
		{Name: "a", Verb: history.ClaimRead, Outcome: history.OK},
		{Name: "a", Verb: history.CheckRead, Outcome: history.OK},
		{Name: "a", Verb: history.CheckRead, Outcome: history.Refused},
	} {
		e.Kind = history.Apply
		tape.Record(e)
	}
	require.Equal(t, map[string]int{writes: 1, refused: 1, staleReads: 1}, tape.report.Counts)
}

func TestMonitor_countsOverRestarts(t *testing.T) {
	m := newMonitor(nil, nil, nil)
	expired := 0
	for _, n := range []int{2, 5, 1, 1, 3} { // restarted after 5
		expired += m.since("m0", n)
	}
	require.Equal(t, 5+3, expired)
	require.Equal(t, 10, m.since("m1", 10))
}

// Each row is what a resource did, in words of a name, a verb, a token and an outcome. The members are killed at "|".
func TestReport_sift(t *testing.T) {
	for name, row := range map[string]struct {
		record string
		want   map[string]int
	}{
		"lower and refused":                       {"a claim 9 ok, |, a claim 5 refused", map[string]int{restoredFenced: 1}},
		"lower and accepted":                      {"a claim 9 ok, |, a claim 5 ok, a write 5 ok", map[string]int{restoredLower: 2}},
		"lower than a later one that was refused": {"a claim 9 refused, |, a claim 5 ok", nil},
		"lower before the restore":                {"a write 9 ok, a write 5 ok, a write 5 refused, |", map[string]int{restoredLower: 1}},
		"of another resource, or a read":          {"a write 9 ok, |, b write 5 ok, a read 5 ok", nil},
		"of a reader, and lower than a reader's": {
			"a claim 5 ok, a claimread 9 ok, a claimread 7 ok, |, a claim 8 ok, a claimread 4 ok", map[string]int{restoredLower: 2},
		},
		"taken by the control": {"a#unfenced write 9 ok, |, a#unfenced write 5 ok", map[string]int{restoredStale: 1}},
		"of the same tenure":   {"a write 9 ok, |, a write 9 ok", nil},
	} {
		t.Run(name, func(t *testing.T) {
			var events []history.Event
			for text := range strings.SplitSeq(row.record, ", ") {
				if text == "|" {
					events = append(events, history.Event{Kind: history.Fault, Name: restoredFault})
					continue
				}
				f := strings.Fields(text)
				events = append(events, history.Event{
					Kind: history.Apply, Name: f[0], Verb: history.Verb(f[1]), Token: fence.Token(f[2][0] - '0'), Outcome: history.Outcome(f[3]),
				})
			}
			r := newReport(1)
			require.Len(t, r.sift(events), row.want[restoredLower])
			if row.want == nil {
				row.want = map[string]int{}
			}
			require.Equal(t, row.want, r.Counts)
		})
	}
}
