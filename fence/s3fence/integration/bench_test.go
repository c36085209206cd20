package integration_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"
)

// Each write beside the SDK's plain PutObject of the same payload, in turns: "×plain" is the ratio of their times.
func BenchmarkBucket(b *testing.B) {
	p := newProxy(b, "", nil)
	bucket := lastBucket()
	ctx := holding(b, 54)
	for _, size := range []int{1 << 10, 1 << 20} {
		payload := bytes.Repeat([]byte("x"), size)
		plain := func() error {
			_, err := p.client.PutObject(ctx, &s3.PutObjectInput{
				Bucket: &bucket, Key: new("plain"), Body: bytes.NewReader(payload),
			})
			return err
		}
		for name, write := range map[string]func() error{
			"Put": func() error { return p.Put(ctx, "key", payload) },
			"Update": func() error {
				return p.Update(ctx, "key", func([]byte) ([]byte, error) { return payload, nil })
			},
		} {
			b.Run(fmt.Sprintf("%s/%dKiB", name, size>>10), func(b *testing.B) {
				var fenced, bare stopwatch
				b.ReportAllocs()
				for b.Loop() {
					require.NoError(b, fenced.time(write))
					require.NoError(b, bare.time(plain))
				}
				b.ReportMetric(fenced.total.Seconds()/bare.total.Seconds(), "×plain")
				b.ReportMetric(float64(fenced.total.Microseconds())/float64(b.N), "µs/fenced")
			})
		}
	}
}
