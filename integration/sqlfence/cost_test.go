package sqlfence_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/integration/storetest"
)

// BenchmarkCost times one transaction, a read-modify-write of one row, without a fence and with each form, on servers
// that flush at each commit. The forms take turns within each round, so that all have the same noise. It reports the
// median of each form, its ratio to the unfenced median, and the difference to the unfenced 99th percentile.
func BenchmarkCost(b *testing.B) {
	for _, p := range each {
		b.Run(p.String(), func(b *testing.B) { cost(b, p) })
	}
}

func cost(b *testing.B, p place) {
	b.Helper()
	f, err := newSQL(storetest.NewDurable(b, p.kind).DB(b), p.dialect(), sqlfence.Options{Isolation: p.level})
	require.NoError(b, err)
	require.NoError(b, f.migrate(b.Context()))
	for _, query := range []string{
		dataDDL,
		"INSERT INTO data VALUES (1, 0, 0, 0, 0)",
	} {
		require.NoError(b, f.exec(b.Context(), query))
	}
	ctx := fence.NewContext(b.Context(), older)
	require.NoError(b, f.claim(ctx, resource))
	set := fmt.Sprintf("n = %s, last = %s", p.arg(1), p.arg(2))
	body := func(ctx context.Context, tx conn) error {
		n, err := read(ctx, tx)
		if err != nil {
			return err
		}
		return tx.exec(ctx, "UPDATE data SET "+set+" WHERE id = "+p.arg(3), n+1, int64(older), 1)
	}
	ways := []struct {
		name string
		run  func() error
	}{
		{"unfenced", func() error {
			return f.transaction(ctx, func(tx conn) error { return body(ctx, tx) })
		}},
		{"Do", func() error { return f.do(ctx, resource, false, body) }},
		{"DoShared", func() error { return f.do(ctx, resource, true, body) }},
		{"row", func() error {
			return f.transaction(ctx, func(tx conn) error {
				n, err := read(ctx, tx)
				if err != nil {
					return err
				}
				return f.updateRow(ctx, tx, account, set, n+1, int64(older))
			})
		}},
	}
	times := make([][]time.Duration, len(ways))
	rounds := 0
	for b.Loop() {
		for i := range ways {
			i = (i + rounds) % len(ways)
			began := time.Now()
			require.NoError(b, ways[i].run())
			times[i] = append(times[i], time.Since(began))
		}
		rounds++
	}
	for i := range times {
		slices.Sort(times[i])
	}
	at := func(i int, share float64) time.Duration { return times[i][int(share*float64(len(times[i])-1))] }
	for i, way := range ways {
		b.ReportMetric(float64(at(i, 0.5).Microseconds()), way.name+"-µs")
		if i > 0 {
			b.ReportMetric(float64(at(i, 0.5))/float64(at(0, 0.5)), way.name+"-ratio")
			b.ReportMetric(float64((at(i, 0.99) - at(0, 0.99)).Microseconds()), way.name+"-p99-more-µs")
		}
	}
	b.ReportMetric(0, "ns/op") // of a whole round, which says nothing
}
