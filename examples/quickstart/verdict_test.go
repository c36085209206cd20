package main

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/examples/internal/ledger"
	"github.com/leasefence/leasefence/examples/internal/timeline"
	"github.com/leasefence/leasefence/fence"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	first := ledger.Entry{Seq: 1, Amount: 100, Balance: 100, Writer: "A"}
	late := ledger.Entry{Seq: 2, Amount: 50, Balance: 150, Writer: "A"}
	second := ledger.Entry{Seq: 2, Amount: 10, Balance: 110, Writer: "B"}
	const a, b = 5, 7
	silent := timeline.New(io.Discard, 0, func(error) {})
	write := func(l *ledger.Ledger, token fence.Token, e ledger.Entry) {
		_ = l.Append(fence.NewContext(t.Context(), token), e) // the ledger keeps account of it
	}

	for _, row := range []struct {
		name   string
		fenced bool
		play   func(l *ledger.Ledger)
		ok     bool
		result string
	}{
		{"refused", true, func(l *ledger.Ledger) {
			write(l, a, first)
			write(l, b, second)
			write(l, a, late)
		}, true, "REFUSED:"},
		{"accepted", false, func(l *ledger.Ledger) {
			write(l, a, first)
			write(l, b, second)
			write(l, a, late)
		}, false, "CORRUPTED:"},
		{"not sent", true, func(l *ledger.Ledger) {
			write(l, a, first)
			write(l, b, second)
		}, false, "FAILED:"},
		{"sent too early", true, func(l *ledger.Ledger) {
			write(l, a, first)
			write(l, a, late)
		}, false, "FAILED:"},
		{"successor has claimed but not written", true, func(l *ledger.Ledger) {
			write(l, a, first)
			_ = l.Claim(fence.NewContext(t.Context(), b))
			write(l, a, late)
		}, false, "FAILED:"},
		{"refused because of another token", true, func(l *ledger.Ledger) {
			write(l, a, first)
			write(l, b, second)
			_ = l.Claim(fence.NewContext(t.Context(), b+1))
			write(l, a, late)
		}, false, "FAILED:"},
		{"refused, but the ledger is damaged", true, func(l *ledger.Ledger) {
			write(l, a, first)
			write(l, b, second)
			write(l, b, second)
			write(l, a, late)
		}, false, "FAILED:"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			l, err := openLedger(t.Context(), row.fenced, silent)
			require.NoError(t, err)
			defer func() { require.NoError(t, l.Close()) }()
			row.play(l)
			v, err := judge(t.Context(), a, b, l)
			require.NoError(t, err)
			require.Equal(t, row.ok, v.ok, "%s", v.why)
			require.Equal(t, row.result, v.result, "%s", v.why)
		})
	}
}
