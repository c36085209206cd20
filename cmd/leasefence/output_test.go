package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTable_isAlignedAndFits(t *testing.T) {
	t.Parallel()
	for width, want := range map[int]string{
		0: "" +
			"TOKEN          NAME         WAITERS\n" +
			"1              ö/long/name  0\n" +
			"1234567890123  a            17\n",
		20: "" +
			"TOKEN          NAME…\n" +
			"1              ö/lo…\n" +
			"1234567890123  a   …\n",
	} {
		var out bytes.Buffer
		table := (&app{out: &out, width: width}).newTable("TOKEN", "NAME", "WAITERS")
		table.add("1", "ö/long/name", "0")
		table.add("1234567890123", "a", "17")
		require.NoError(t, table.flush())
		require.Equal(t, want, out.String())
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
		"a\u202eb":               `"a\u202eb"`, // it would turn the direction of the text after it
	} {
		require.Equal(t, want, harmless(text))
	}
}

// JSON output has invisible characters only as escapes, and decodes to the same text.
func TestPrintJSON_escapesInvisibleCharacters(t *testing.T) {
	t.Parallel()
	const odd = "nächtlich <\"x\"> \u009b2J \u202eb\u2066 \x7f \u00a0 \t\n \U000e0041 \U0001f512 \ufeff\u2028"
	var out, log bytes.Buffer
	require.NoError(t, printJSON(&out, []string{odd}))
	require.Equal(t, `["nächtlich <\"x\"> \u009b2J \u202eb\u2066 \u007f \u00a0 \t\n \udb40\udc41 🔒 \ufeff\u2028"]`+"\n", out.String())
	var back []string
	require.NoError(t, json.Unmarshal(out.Bytes(), &back))
	require.Equal(t, []string{odd}, back)

	a := &app{stderr: &log, output: outputJSON}
	a.say("%s", odd)
	require.Contains(t, log.String(), `{"message":"`)
	a.complain(&exitError{exitFailed, errors.New(odd)}, nil)
	a.logger().Warn(odd)
	require.Equal(t, 3, strings.Count(log.String(), `\u202eb`))
	require.NotContains(t, log.String(), "\u202e")
}
