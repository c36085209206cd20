package main

import (
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	first := entry{Seq: 1, Amount: 100, Balance: 100, Writer: "A"}
	late := entry{Seq: 2, Amount: 50, Balance: 150, Writer: "A"}
	second := entry{Seq: 2, Amount: 10, Balance: 110, Writer: "B"}
	const a, b = 5, 7
	silent := newTimeline(os.Stdout, func(error) {})
	silent.out = io.Discard

	for _, row := range []struct {
		name   string
		fenced bool
		play   func(l *ledger)
		ok     bool
		result string
	}{
		{"refused", true, func(l *ledger) {
			_, _, _ = l.append(a, first), l.append(b, second), l.append(a, late)
		}, true, "REFUSED:"},
		{"accepted", false, func(l *ledger) {
			_, _, _ = l.append(a, first), l.append(b, second), l.append(a, late)
		}, false, "CORRUPTED:"},
		{"not sent", true, func(l *ledger) {
			_, _ = l.append(a, first), l.append(b, second)
		}, false, "FAILED:"},
		{"sent too early", true, func(l *ledger) {
			_, _ = l.append(a, first), l.append(a, late)
		}, false, "FAILED:"},
		{"successor has claimed but not written", true, func(l *ledger) {
			_, _, _ = l.append(a, first), l.claim(b), l.append(a, late)
		}, false, "FAILED:"},
		{"refused because of another token", true, func(l *ledger) {
			_, _, _, _ = l.append(a, first), l.append(b, second), l.claim(b+1), l.append(a, late)
		}, false, "FAILED:"},
		{"refused, but the ledger is damaged", true, func(l *ledger) {
			_, _, _, _ = l.append(a, first), l.append(b, second), l.append(b, second), l.append(a, late)
		}, false, "FAILED:"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			l := &ledger{fenced: row.fenced, tl: silent}
			row.play(l)
			v := judge(a, b, l)
			require.Equal(t, row.ok, v.ok, "%s", v.why)
			require.Equal(t, row.result, v.result, "%s", v.why)
		})
	}
}
