//go:build unix

package stage

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// at is the time so many seconds into the histories below.
func at(seconds float64) time.Time {
	return time.Unix(1_000_000, 0).Add(time.Duration(seconds * float64(time.Second)))
}

func TestTenures(t *testing.T) {
	t.Parallel()
	a, b := &Process{ID: "A"}, &Process{ID: "B"}
	all := tenures([]Event{
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
	require.Equal(t, []tenure{
		{"A", 2, at(1), at(3), HasStopped},
		{"B", 3, at(5), at(6), LeadsNoMore},
		{"A", 9, at(7), time.Time{}, ""},
	}, all)
}

func TestAlone(t *testing.T) {
	t.Parallel()
	a, b := tenure{"A", 2, at(1), at(3), LeadsNoMore}, tenure{"B", 5, at(3), at(4), LeadsNoMore}
	require.NoError(t, alone([]tenure{a, b}))
	for name, all := range map[string][]tenure{
		"nobody led":    nil,
		"two leaders":   {{"A", 2, at(1), at(3.1), LeadsNoMore}, b},
		"no end":        {{"A", 2, at(1), time.Time{}, ""}, b},
		"smaller token": {{"A", 7, at(1), at(3), LeadsNoMore}, b},
		"same token":    {{"A", 5, at(1), at(3), LeadsNoMore}, b},
	} {
		require.Error(t, alone(all), name)
	}
}
