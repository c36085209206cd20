package main

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestTable_isAligned(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	a := &app{out: &out}
	table := a.newTable([]int{1}, "TOKEN", "NAME", "WAITERS")
	table.add("1", "a/long/name", "0")
	table.add("1234567890123", "a", "17")
	require.NoError(t, table.flush())
	require.Equal(t, ""+
		"TOKEN          NAME         WAITERS\n"+
		"1              a/long/name  0\n"+
		"1234567890123  a            17\n", out.String())
}

func TestTable_fits(t *testing.T) {
	t.Parallel()
	for width := 40; width < 130; width++ {
		var out bytes.Buffer
		a := &app{out: &out, width: width}
		table := a.newTable([]int{2, 1}, "TOKEN", "OWNER", "KEY")
		table.add("1", strings.Repeat("ö", 40), strings.Repeat("k", 60))
		table.add("22", "", "")
		require.NoError(t, table.flush())
		longest := 0
		for line := range strings.Lines(out.String()) {
			longest = max(longest, utf8.RuneCountInString(strings.TrimRight(line, "\n")))
		}
		require.Equal(t, min(width, 9+42+60), longest, "%d columns:\n%s", width, &out)
	}
}

func TestHarmless(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                       "",
		"jobs/nächtlich ~ \"x\"": "jobs/nächtlich ~ \"x\"",
		"a\tb":                   `"a\tb"`,
		"a\x1b[2J":               `"a\x1b[2J"`,
		"a\nb":                   `"a\nb"`,
		"\xff":                   `"\xff"`,
		"a\u202eb":               `"a\u202eb"`, // it would turn the direction of what follows
	} {
		require.Equal(t, want, harmless(text))
	}
}
