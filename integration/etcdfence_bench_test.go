package integration_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/lease"
)

// BenchmarkEtcdfence puts a key with and without the fence, in turn: "x-plain" is the ratio of the two in this run. The
// server syncs its log.
func BenchmarkEtcdfence(b *testing.B) {
	srv := etcdtest.Start(b, etcdtest.Options{Fsync: true})
	client := srv.Client(b)
	l := mustLock(b, newSession(b, client, lease.Options{}), "n")
	marked := markedBy(b, client, "r")
	held := fencedBy(b, client, l)
	ctx := fence.NewContext(b.Context(), l.Token())
	put := func(kv clientv3.KV) func(context.Context) error {
		return func(ctx context.Context) error { return second2(kv.Put(ctx, "data", "value")) }
	}
	txn := func(kv clientv3.KV) func(context.Context) error {
		return func(ctx context.Context) error {
			return second2(kv.Txn(ctx).If(clientv3.Compare(clientv3.Value("data"), "=", "value")).
				Then(clientv3.OpPut("data", "value")).Else(clientv3.OpGet("data")).Commit())
		}
	}
	token := l.Token()
	raising := func(ctx context.Context) error {
		token++
		return second2(marked.Put(fence.NewContext(ctx, token), "data", "value"))
	}
	for _, row := range []struct {
		name          string
		plain, fenced func(context.Context) error
	}{
		{"held put", put(client), put(held)},
		{"held txn", txn(client), txn(held)},
		{"mark put", put(client), put(marked)},
		{"mark txn", txn(client), txn(marked)},
		{"mark put that raises", put(client), raising},
		{"plain again", put(client), put(client)}, // what the ratio is worth
	} {
		b.Run(row.name, func(b *testing.B) {
			var plain, fenced time.Duration
			b.ReportAllocs()
			for b.Loop() {
				begin := time.Now()
				require.NoError(b, row.plain(ctx))
				middle := time.Now()
				require.NoError(b, row.fenced(ctx))
				plain += middle.Sub(begin)
				fenced += time.Since(middle)
			}
			b.ReportMetric(fenced.Seconds()/plain.Seconds(), "x-plain")
			b.ReportMetric(float64(fenced.Microseconds())/float64(b.N), "fenced-µs/op")
		})
	}
}
