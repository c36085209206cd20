package mix

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/safety/check"
)

// enough returns a report that just reaches all floors.
func enough() *Report {
	r := newReport(1)
	for what, least := range floors() {
		r.count(what, least)
	}
	return r
}

func TestReport_Missed(t *testing.T) {
	require.Len(t, allKinds(), 40)
	require.Empty(t, enough().Missed())
	for what, lower := range map[string]func(*Report){
		check.Deadlines:     func(r *Report) { r.count(check.Deadlines, -1) },
		check.ControlStale:  func(r *Report) { r.count(check.ControlStale, -1) },
		check.ToldOfRestore: func(r *Report) { r.count(check.ToldOfRestore, -1) },
		allKinds()[7]: func(r *Report) {
			r.Counts[faultOf+allKinds()[7]] = 0
			r.strike(allKinds()[7], false)
		},
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

func TestReport_judge(t *testing.T) {
	r := newReport(1)
	r.judge(4, check.Report{
		Violations: []check.Violation{{Invariant: "I3", Checker: "intervals", Name: "a", Text: "two at a time"}},
		Malformed:  []string{"op 1 enters twice"},
		Counts: []check.Count{
			{What: "granted: lock", N: 1},
			{What: "granted: rlock", N: 2},
			{What: "granted: permit", N: 4},
			{What: check.Refused, N: 5},
			{What: check.RefusedForReaders, N: 6},
			{What: check.RefusedReaders, N: 8},
		},
	})
	require.Equal(t, []Violation{{"I3", 4, "a: two at a time (found by intervals)"}, {"history", 4, "op 1 enters twice"}}, r.Violations)
	maps.DeleteFunc(r.Counts, func(_ string, n int) bool { return n == 0 })
	require.Equal(t, map[string]int{
		check.Granted: 7, readLocks: 2, permitsTaken: 4, check.Refused: 11, check.RefusedForReaders: 6, check.RefusedReaders: 8,
	}, r.Counts)
	require.Contains(t, r.String(), "\nviolations: 2\n  I3       1\n")
	require.Contains(t, r.String(), "\nI3, round 4: a: two at a time (found by intervals)\n")
}

func TestMonitor_countsOverRestarts(t *testing.T) {
	member := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "etcd_debugging_server_lease_expired_total 7\n")
	}))
	defer member.Close()
	m, endpoint := newMonitor(nil, nil, nil), member.Listener.Addr().String()
	m.http = *member.Client()
	expired := 0
	for _, n := range []int{2, 5, 1, 1, 3} { // restarted after 5
		expired += m.since(endpoint, n)
	}
	require.Equal(t, 5+3, expired)
	require.Equal(t, 10, m.since("another", 10))
	require.Equal(t, 7, m.latest(t.Context(), endpoint), "it is asked")
	member.Close()
	require.Equal(t, 3, m.latest(t.Context(), endpoint), "it does not answer")
}
