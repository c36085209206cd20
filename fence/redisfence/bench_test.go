package redisfence_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence/redisfence"
)

// Beside each fenced write the client's plain SET runs in the same loop; the ratio is what the fence costs.
func BenchmarkFence_besidePlainSET(b *testing.B) {
	for _, bb := range []struct {
		name  string
		write func(f *redisfence.Fence) func() error
	}{
		{"Set", func(f *redisfence.Fence) func() error {
			ctx := as(b, 54)
			return func() error { return f.Set(ctx, "orders", "orders", "value") }
		}},
		{"Run", func(f *redisfence.Fence) func() error {
			ctx, keys := as(b, 54), []string{"orders"}
			script := redisfence.NewScript("return redis.call('SET', KEYS[1], ARGV[1])")
			return func() error { _, err := f.Run(ctx, "orders", script, keys, "value"); return err }
		}},
		{"Check", func(f *redisfence.Fence) func() error {
			ctx := as(b, 54)
			return func() error { return f.Check(ctx, "orders") }
		}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			c := newClient(b)
			f := newFence(b, c)
			require.NoError(b, f.Claim(as(b, 54), "orders"))
			write := bb.write(f)
			require.NoError(b, write())
			var plain, fenced time.Duration
			ctx := b.Context()
			b.ReportAllocs()
			for b.Loop() {
				began := time.Now()
				if err := c.Set(ctx, "orders", "value", 0).Err(); err != nil {
					b.Fatal(err)
				}
				between := time.Now()
				if err := write(); err != nil {
					b.Fatal(err)
				}
				plain += between.Sub(began)
				fenced += time.Since(between)
			}
			b.ReportMetric(float64(plain.Nanoseconds())/float64(b.N), "plain-ns/op")
			b.ReportMetric(float64(fenced.Nanoseconds())/float64(b.N), "fenced-ns/op")
			b.ReportMetric(float64(fenced)/float64(plain), "fenced/plain")
		})
	}
}
