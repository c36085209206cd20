package etcd_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// seeing passes the context of each transaction to see.
type seeing struct {
	clientv3.KV
	see func(context.Context)
}

func (s seeing) Txn(ctx context.Context) clientv3.Txn { s.see(ctx); return s.KV.Txn(ctx) }

func TestLine_alone_isTheCallersOwnRequest(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		var seen []context.Context
		e.c.KV = seeing{e.c.KV, func(ctx context.Context) { seen = append(seen, ctx) }}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		sent := e.record()
		txns := []etcd.Txn{e.enter("a/x"), e.enter("a/x"), leave("a/x"), e.enter("a/x"), {Then: []*pb.RequestOp{
			etcd.Range(&pb.RangeRequest{Key: []byte("a/"), RangeEnd: []byte("a0"), KeysOnly: true}),
			etcd.Nested(e.enter("b/x")),
		}}}
		for _, txn := range txns {
			_, err := e.Commit(ctx, txn)
			require.NoError(t, err)
		}
		require.Zero(t, e.owner.everSpawned())
		require.Zero(t, e.now())
		require.Len(t, seen, len(txns))
		for i, req := range sent() {
			require.Equal(t, ctx.Done(), seen[i].Done(), "not a derived context either")
			want := &pb.TxnRequest{Success: txns[i].Then, Failure: txns[i].Else}
			for _, cmp := range txns[i].If {
				want.Compare = append(want.Compare, cmp.GetCompare())
			}
			require.Equal(t, want.String(), req.String())
		}
	})
}

// Transactions one after the other never wait: each frees its lane, also if it fails.
func TestLine_alone_everyTime(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{After: time.Millisecond})
		for range 50 {
			for _, fault := range []fakeetcd.Fault{
				{Times: 1, Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable},
				{Times: 1, Lose: fakeetcd.Request},
			} {
				e.c.Inject(fakeetcd.Txn, fault)
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				_, err := e.Commit(ctx, leave("a/x"))
				cancel()
				require.Error(t, err)
				require.False(t, etcd.Refused(err))
			}
			_, err := e.Commit(t.Context(), leave("a/x"))
			require.NoError(t, err)
		}
		require.Zero(t, e.owner.everSpawned())
	})
}
