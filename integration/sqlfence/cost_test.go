package sqlfence_test

import (
	"context"
	"database/sql"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/integration/storetest"
)

// BenchmarkCost times one transaction, a read-modify-write of one row, without a fence and with each form, on servers
// that flush at each commit. The forms take turns within each round, so that they meet the same noise. It reports the
// median of each, its ratio to the unfenced one, and how much the 99th percentile is above that one's.
func BenchmarkCost(b *testing.B) {
	for _, p := range []place{places[0], places[5], places[7]} {
		b.Run(p.String(), func(b *testing.B) { cost(b, p) })
	}
}

func cost(b *testing.B, p place) {
	b.Helper()
	db := storetest.NewDurable(b, p.kind).DB(b)
	f, err := sqlfence.New(p.dialect, sqlfence.Options{Isolation: p.level})
	require.NoError(b, err)
	require.NoError(b, f.Migrate(b.Context(), db))
	for _, query := range []string{
		dataDDL,
		"INSERT INTO data VALUES (1, 0, 0, 0, 0)",
	} {
		_, err := db.ExecContext(b.Context(), query)
		require.NoError(b, err)
	}
	r := &rig{place: p, db: db, f: f}
	ctx := fenced(b)
	require.NoError(b, f.Claim(ctx, db, resource))
	set, where := "n = ?, last = ?", " WHERE id = ?"
	if p.kind == storetest.PostgreSQL {
		set, where = "n = $1, last = $2", " WHERE id = $3"
	}
	body := func(ctx context.Context, tx *sql.Tx) error {
		n, err := read(ctx, tx)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE data SET "+set+where, n+1, int64(older), 1)
		return err
	}
	account := sqlfence.Row{Table: "data", Key: "id", ID: 1}
	ways := []struct {
		name string
		run  func() error
	}{
		{"unfenced", func() error {
			return r.transaction(ctx, func(tx *sql.Tx) error { return body(ctx, tx) })
		}},
		{"Do", func() error { return f.Do(ctx, db, resource, body) }},
		{"DoShared", func() error { return f.DoShared(ctx, db, resource, body) }},
		{"row", func() error {
			return r.transaction(ctx, func(tx *sql.Tx) error {
				n, err := read(ctx, tx)
				if err != nil {
					return err
				}
				return f.UpdateRow(ctx, tx, account, set, n+1, int64(older))
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
