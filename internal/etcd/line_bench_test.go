package etcd_test

import (
	"context"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// What a line adds for a caller that has it for itself. The transaction writes nothing, so that the store does not
// grow; the fake's record of requests does, in both.
func BenchmarkLine_alone(b *testing.B) {
	txn := leave("a/x")
	for _, bc := range []struct {
		name   string
		commit func(*clientv3.Client) func(context.Context) error
	}{
		{"client", func(client *clientv3.Client) func(context.Context) error {
			return func(ctx context.Context) error {
				_, err := client.Txn(ctx).If(txn.If...).Then(txn.Then...).Else(txn.Else...).Commit()
				return err
			}
		}},
		{"line", func(client *clientv3.Client) func(context.Context) error {
			conn := etcd.Of(client)
			line := etcd.NewLine(conn, etcd.LineOptions{Bound: bound, Spawn: newOwner(b.Context()).spawn})
			return func(ctx context.Context) error {
				_, err := line.Commit(conn.Once(ctx), txn)
				return err
			}
		}},
	} {
		b.Run(bc.name, func(b *testing.B) {
			srv := fakeetcd.New()
			defer srv.Close()
			ctx := b.Context()
			do := bc.commit(srv.Client(ctx))
			b.ReportAllocs()
			for b.Loop() {
				if err := do(ctx); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
