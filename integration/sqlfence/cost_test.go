package sqlfence_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
)

// BenchmarkCost times one transaction on PostgreSQL, a read-modify-write of one row, without a fence and with each form.
// The forms take turns within each round, so that all have the same noise. It reports the median of each form and its
// ratio to the unfenced median.
func BenchmarkCost(b *testing.B) {
	db := durable.store(b).open(b)
	f, err := newSQL(db, sqlfence.PostgreSQL, sqlfence.Options{})
	require.NoError(b, err)
	require.NoError(b, f.migrate(b.Context()))
	for _, query := range []string{dataDDL, "INSERT INTO data VALUES (1, 0, 0, 0, 0)"} {
		require.NoError(b, f.exec(b.Context(), query))
	}
	ctx := fence.NewContext(b.Context(), older)
	require.NoError(b, f.claim(ctx, resource))
	const set = "n = $1, last = $2"
	body := func(ctx context.Context, tx conn) error {
		n, err := read(ctx, tx)
		if err != nil {
			return err
		}
		return tx.exec(ctx, "UPDATE data SET "+set+" WHERE id = $3", n+1, int64(older), 1)
	}
	ways := []struct {
		name string
		run  func() error
	}{
		{"unfenced", func() error {
			return f.transaction(ctx, func(tx conn) error { return body(ctx, tx) })
		}},
		{"Do", func() error { return f.do(ctx, resource, body) }},
		{"DoShared", func() error { return f.doShared(ctx, resource, body) }},
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
	unfenced := 0.0
	for i, way := range ways {
		slices.Sort(times[i])
		median := float64(times[i][len(times[i])/2].Microseconds())
		b.ReportMetric(median, way.name+"-µs")
		if i == 0 {
			unfenced = median
		} else {
			b.ReportMetric(median/unfenced, way.name+"-ratio")
		}
	}
	b.ReportMetric(0, "ns/op") // of a whole round, which says nothing
}
