//go:build unix

package stage

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/examples/internal/ledger"
	"github.com/leasefence/leasefence/fence"
)

// at is a time of the histories below, in seconds.
func at(seconds float64) time.Time {
	return time.Unix(1_000_000, 0).Add(time.Duration(seconds * float64(time.Second)))
}

func TestReigns(t *testing.T) {
	t.Parallel()
	a, b := &Process{ID: "A"}, &Process{ID: "B"}
	all := reigns([]Event{
		{When: at(1), Node: a, What: Leads, Token: 2},
		{When: at(2), What: Accepts, Token: 2},
		{When: at(3), Node: a, What: HasStopped},
		{When: at(5.1), Node: a, What: GoesOn},
		{When: at(5), Node: b, What: Leads, Token: 3},
		{When: at(5.2), Node: a, What: LeadsNoMore, Token: 2},
		{When: at(6), Node: b, What: LeadsNoMore, Token: 3},
		{When: at(7), Node: a, What: Leads, Token: 9},
		{When: at(8), Node: b, What: HasEnded},
	})
	require.Equal(t, []reign{
		{"A", 2, at(1), at(3), HasStopped},
		{"B", 3, at(5), at(6), LeadsNoMore},
		{"A", 9, at(7), time.Time{}, ""},
	}, all)
}

func TestJudge(t *testing.T) {
	t.Parallel()
	good := []reign{{"A", 2, at(1), at(3), LeadsNoMore}, {"B", 5, at(3), at(4), LeadsNoMore}}
	nothing := func(ledger.Attempt) {}
	for _, row := range []struct {
		name   string
		reigns []reign
		fenced bool
		writes []fence.Token // each continues what it has read at last
		late   bool          // and then one of token 2 that has read nothing new
		failed []bool        // by check
	}{
		{"good", good, true, []fence.Token{2, 5}, true, []bool{false, false, false}},
		{"nobody led", nil, true, []fence.Token{2, 5}, true, []bool{true, false, false}},
		{"two leaders", []reign{{"A", 2, at(1), at(3.1), LeadsNoMore}, good[1]}, true, []fence.Token{2, 5}, true, []bool{true, false, false}},
		{"no end", []reign{{"A", 2, at(1), time.Time{}, ""}, good[1]}, true, []fence.Token{2, 5}, true, []bool{true, false, false}},
		{"smaller token", []reign{{"A", 7, at(1), at(3), LeadsNoMore}, good[1]}, true, []fence.Token{2, 5}, true, []bool{true, false, false}},
		{"same token", []reign{{"A", 5, at(1), at(3), LeadsNoMore}, good[1]}, true, []fence.Token{2, 5}, true, []bool{true, false, false}},
		{"late write accepted", good, false, []fence.Token{2, 5}, true, []bool{false, true, true}},
		{"no late write", good, true, []fence.Token{2, 5}, false, []bool{false, true, false}},
		{"late write accepted, but it continues", good, false, []fence.Token{2, 5, 2}, false, []bool{false, true, false}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			book, err := ledger.Open(t.Context(), row.fenced, nothing, nothing)
			require.NoError(t, err)
			defer func() { require.NoError(t, book.Close()) }()
			last := func() ledger.Entry {
				e, err := book.Last(t.Context())
				require.NoError(t, err)
				return e
			}
			var first ledger.Entry
			write := func(token fence.Token, last ledger.Entry) {
				err := book.Append(fence.NewContext(t.Context(), token), ledger.Entry{Seq: last.Seq + 1, Amount: 1, Balance: last.Balance + 1, Writer: "W"})
				require.True(t, err == nil || row.fenced)
			}
			for _, token := range row.writes {
				write(token, last())
				if first.Seq == 0 {
					first = last()
				}
			}
			if row.late {
				write(2, first)
			}
			entries, err := book.Entries(t.Context())
			require.NoError(t, err)
			var failed []bool
			for _, c := range judge(row.reigns, entries, book.Attempts()) {
				failed = append(failed, c.err != nil)
			}
			require.Equal(t, row.failed, failed)
		})
	}
}
