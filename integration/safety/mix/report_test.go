package mix_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/safety/mix"
)

// enough returns a report that just reaches all floors.
func enough() *mix.Report {
	r := &mix.Report{Faults: map[string]mix.Struck{}}
	for _, f := range mix.Floors() {
		*f.Of(&r.Counts) = f.Least
	}
	for _, kind := range mix.AllKinds() {
		r.Faults[kind] = mix.Struck{Fired: 1}
	}
	return r
}

func TestReport_Missed(t *testing.T) {
	require.Len(t, mix.AllKinds(), 40)
	require.Empty(t, enough().Missed(mix.Floors()))
	for what, lower := range map[string]func(*mix.Report){
		"stale writes refused": func(r *mix.Report) { r.Counts.Refused-- },
		"unfenced control":     func(r *mix.Report) { r.Counts.ControlStale-- },
		"never fired":          func(r *mix.Report) { r.Faults[mix.AllKinds()[7]] = mix.Struck{Missed: 5} },
		"no harm done to it":   func(r *mix.Report) { r.Peer = &mix.Peer{Acquisitions: 1000} },
	} {
		t.Run(what, func(t *testing.T) {
			r := enough()
			lower(r)
			missed := r.Missed(mix.Floors())
			require.Len(t, missed, 1)
			require.Contains(t, missed[0], what)
		})
	}
}

func TestReport_listsViolationsAndHarmToThePeer(t *testing.T) {
	r := enough()
	r.Violations = []mix.Violation{{Invariant: "I3", Round: 4, Text: "two at a time"}, {Invariant: "odd", Text: "?"}}
	r.Peer = &mix.Peer{Overlaps: 17}
	text := r.String()
	for _, want := range []string{"fenced writes", "floor 10000", "I3       1", "odd      1", "I3, round 4: two at a time", "two holders", "17"} {
		require.Contains(t, text, want)
	}
}
