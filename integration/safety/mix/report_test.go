package mix_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/safety/mix"
)

// enough is a report that reaches all floors exactly.
func enough() *mix.Report {
	r := &mix.Report{Faults: map[string]mix.Struck{}, Counts: mix.Counts{
		Faults: 250, Acquisitions: 10000, Writes: 10000, Refused: 100, Expiries: 50, LeaderChanges: 10, StaleAuth: 50, ControlStale: 1,
		Restores: 1, Shared: 100, Sets: 50, Trees: 50, Permits: 50, StaleReads: 5, StaleByReader: 5,
	}}
	for _, kind := range mix.AllKinds() {
		r.Faults[kind] = mix.Struck{Fired: 1}
	}
	return r
}

func TestReport_reachesItsFloors(t *testing.T) {
	require.Empty(t, enough().Missed(mix.Floors()))
}

func TestReport_missesAFloorByOne(t *testing.T) {
	for what, lower := range map[string]func(*mix.Counts){
		"faults":               func(c *mix.Counts) { c.Faults-- },
		"acquisitions":         func(c *mix.Counts) { c.Acquisitions-- },
		"fenced writes":        func(c *mix.Counts) { c.Writes-- },
		"stale writes refused": func(c *mix.Counts) { c.Refused-- },
		"lease expiries":       func(c *mix.Counts) { c.Expiries-- },
		"leader changes":       func(c *mix.Counts) { c.LeaderChanges-- },
		"auth token":           func(c *mix.Counts) { c.StaleAuth-- },
		"restores":             func(c *mix.Counts) { c.Restores-- },
		"read locks":           func(c *mix.Counts) { c.Shared-- },
		"sets":                 func(c *mix.Counts) { c.Sets-- },
		"trees":                func(c *mix.Counts) { c.Trees-- },
		"permits":              func(c *mix.Counts) { c.Permits-- },
		"requests of readers":  func(c *mix.Counts) { c.StaleReads-- },
		"reader's claim":       func(c *mix.Counts) { c.StaleByReader-- },
		"unfenced control":     func(c *mix.Counts) { c.ControlStale-- },
	} {
		t.Run(what, func(t *testing.T) {
			r := enough()
			lower(&r.Counts)
			missed := r.Missed(mix.Floors())
			require.Len(t, missed, 1)
			require.Contains(t, missed[0], what)
		})
	}
}

func TestReport_missesAFaultThatMetNothing(t *testing.T) {
	require.Len(t, mix.AllKinds(), 40)
	for _, kind := range mix.AllKinds() {
		r := enough()
		r.Faults[kind] = mix.Struck{Missed: 5}
		missed := r.Missed(mix.Floors())
		require.Len(t, missed, 1)
		require.Contains(t, missed[0], kind)
	}
}

func TestReport_missesHarmToThePeer(t *testing.T) {
	r := enough()
	r.Peer = &mix.Peer{Acquisitions: 1000}
	require.Len(t, r.Missed(mix.Floors()), 1)
	r.Peer.StuckKeys = 1
	require.Empty(t, r.Missed(mix.Floors()))
}

func TestReport_showsWhatWasFound(t *testing.T) {
	r := enough()
	r.Violations = []mix.Violation{{Invariant: "I3", Round: 4, Text: "two at a time"}, {Invariant: "odd", Text: "?"}}
	r.Peer = &mix.Peer{Overlaps: 17}
	text := r.String()
	for _, want := range []string{"fenced writes", "floor 10000", "I3       1", "odd      1", "I3, round 4: two at a time", "two holders", "17"} {
		require.Contains(t, text, want)
	}
}
