package check_test

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/safety/check"
	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

// The verdict on each history is the expected one: invariant/checker for each violation. Together, the histories make
// each checker find each invariant that it checks, and make each count of the report positive.
func TestCheck_fixtures(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.jsonl")
	require.NoError(t, err)
	var all []string
	looked := map[string]int{}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".jsonl"), func(t *testing.T) {
			events, err := history.ReadFile(path)
			require.NoError(t, err)
			n := slices.IndexFunc(events, func(e history.Event) bool { return e.Kind == history.Note && e.Name == "verdict" })
			require.NotEqual(t, -1, n, "no verdict")
			want := strings.Fields(events[n].Value)
			report := check.Check(events)
			require.LessOrEqual(t, report.Counts[check.PeerOverlaps], 1)
			require.LessOrEqual(t, report.Counts[check.LiveAtRestore], 3)
			for what, n := range report.Counts {
				looked[what] += n
			}
			var got []string
			for _, v := range report.Violations {
				require.NotEmpty(t, v.Text)
				require.NotEmpty(t, v.Events)
				got = append(got, v.Invariant+"/"+v.Checker)
			}
			require.ElementsMatch(t, want, got, "%v", report.Violations)
			all = append(all, want...)
		})
	}
	slices.Sort(all)
	require.Equal(t, []string{
		"I1/resource",
		"I2/intervals", "I2/watch",
		"I3/deadline", "I3/intervals", "I3/operator", "I3/release",
		"I4/requests", "I4/resource",
		"I5/requests",
		"I6/watch",
		"I7/order", "I7/progress", "I7/watch",
		"I8/intervals", "I8/observers",
		"I9/restore",
	}, slices.Compact(all))
	for r := lease.ReasonDeadlinePassed; r <= lease.ReasonSessionClosed; r++ {
		require.Contains(t, looked, "lost: "+r.String(), "the reasons of losses that are counted")
	}
	maps.DeleteFunc(looked, func(_ string, n int) bool { return n > 0 })
	require.Empty(t, looked, "the counts that no history makes positive")
}
