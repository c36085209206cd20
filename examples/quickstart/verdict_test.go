package main

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/examples/internal/ledger"
	"github.com/leasefence/leasefence/examples/internal/timeline"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	first := ledger.Entry{Seq: 1, Amount: 100, Balance: 100, Writer: "A"}
	late := ledger.Entry{Seq: 2, Amount: 50, Balance: 150, Writer: "A"}
	second := ledger.Entry{Seq: 2, Amount: 10, Balance: 110, Writer: "B"}
	const a, b = 5, 7
	silent := timeline.New(io.Discard, 0, func(error) {})

	for _, row := range []struct {
		name   string
		fenced bool
		play   func(l *ledger.Ledger)
		ok     bool
		result string
	}{
		{"refused", true, func(l *ledger.Ledger) {
			_, _, _ = l.Append(a, first), l.Append(b, second), l.Append(a, late)
		}, true, "REFUSED:"},
		{"accepted", false, func(l *ledger.Ledger) {
			_, _, _ = l.Append(a, first), l.Append(b, second), l.Append(a, late)
		}, false, "CORRUPTED:"},
		{"not sent", true, func(l *ledger.Ledger) {
			_, _ = l.Append(a, first), l.Append(b, second)
		}, false, "FAILED:"},
		{"sent too early", true, func(l *ledger.Ledger) {
			_, _ = l.Append(a, first), l.Append(a, late)
		}, false, "FAILED:"},
		{"successor has claimed but not written", true, func(l *ledger.Ledger) {
			_, _, _ = l.Append(a, first), l.Claim(b), l.Append(a, late)
		}, false, "FAILED:"},
		{"refused because of another token", true, func(l *ledger.Ledger) {
			_, _, _, _ = l.Append(a, first), l.Append(b, second), l.Claim(b+1), l.Append(a, late)
		}, false, "FAILED:"},
		{"refused, but the ledger is damaged", true, func(l *ledger.Ledger) {
			_, _, _, _ = l.Append(a, first), l.Append(b, second), l.Append(b, second), l.Append(a, late)
		}, false, "FAILED:"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			l := newLedger(row.fenced, silent)
			row.play(l)
			v := judge(a, b, l)
			require.Equal(t, row.ok, v.ok, "%s", v.why)
			require.Equal(t, row.result, v.result, "%s", v.why)
		})
	}
}
