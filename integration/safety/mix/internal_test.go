package mix

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/safety/history"
)

func TestTally_countsOnlyWritesAtTheFencedResource(t *testing.T) {
	tally := newTally()
	for _, e := range []history.Event{
		{Kind: history.Apply, Name: "a", Verb: history.Write, Outcome: history.OK},
		{Kind: history.Apply, Name: "a", Verb: history.Write, Outcome: history.Refused},
		{Kind: history.Apply, Name: "a", Verb: history.Claim, Outcome: history.Refused},
		{Kind: history.Apply, Name: "a", Verb: history.Read, Outcome: history.OK},
		{Kind: history.Apply, Name: "a" + history.UnfencedMark, Verb: history.Write, Outcome: history.OK},
		{Kind: history.Apply, Name: "a", Verb: history.ClaimRead, Outcome: history.OK},
		{Kind: history.Apply, Name: "a", Verb: history.CheckRead, Outcome: history.OK},
		{Kind: history.Apply, Name: "a", Verb: history.CheckRead, Outcome: history.Refused},
	} {
		tally.add(e)
	}
	c := tally.counts()
	require.Equal(t, 1, c.Writes)
	require.Equal(t, 1, c.Refused)
	require.Equal(t, 1, c.StaleReads)
}

func TestMonitor_countsOverRestarts(t *testing.T) {
	m := newMonitor(nil, nil, nil)
	for _, n := range []int{2, 5, 1, 1, 3} { // restarted after 5
		m.count("m0", n)
	}
	m.count("m1", 10)
	_, expired := m.counts()
	require.Equal(t, 5+3+10, expired)
}

func TestScaffold_goesOnIfACleanupHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s scaffold
		cleaned, release := false, make(chan struct{})
		s.Cleanup(func() { cleaned = true })
		s.Cleanup(func() { <-release })
		require.False(t, s.clean())
		require.True(t, cleaned)
		close(release)
	})
}

func TestPeerStage_countsOverlapsAndStaleWrites(t *testing.T) {
	p := newPeerStage(nil, time.Second)
	lost, never := make(chan struct{}), make(chan struct{})
	first := p.granted(lost, "a")
	p.write(first, "a")
	p.over(first)
	require.Zero(t, p.report.Overlaps)

	second := p.granted(lost, "a")
	third := p.granted(never, "a")
	require.Equal(t, 1, p.report.Overlaps)
	p.write(third, "a")
	p.write(second, "a")
	require.Equal(t, 1, p.report.StaleWrites)
	p.over(second)
	require.Positive(t, p.report.LongestOverlap)

	fourth := p.granted(lost, "b")
	close(lost)
	require.True(t, fourth.sawLoss())
	p.granted(never, "b")
	require.Equal(t, 1, p.report.Overlaps, "a holder that knows of its loss does not count")
}
