package etcd_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// Transactions that come while the lane is busy are sent together as soon as it is free. Each gets the result that
// it would have got alone.
func TestLine_share(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.srv.Put("taken/x", "of somebody")
		txns := slices.Concat(e.enters("a", 10), e.plant("b", 10),
			[]etcd.Txn{e.enter("taken/x"), leave("missing/x")}, e.enters("c", 10))
		outcomes, sent := e.together(t, txns)
		require.Len(t, sent, 2, "not all comparisons hold, so the second request has nested transactions")
		require.Equal(t, len(txns), carried(sent[0]))
		require.Len(t, nested(sent[1]), len(txns))
		require.Empty(t, sent[1].Compare)
		for i, o := range outcomes {
			require.NoError(t, o.err)
			require.LessOrEqual(t, o.at, time.Millisecond, "the moment in which a line gathers transactions")
			require.Equal(t, e.srv.Rev(), o.res.Revision, "of the shared commit")
			require.Len(t, o.res.Responses, map[bool]int{true: len(txns[i].Then), false: len(txns[i].Else)}[o.res.Succeeded])
			switch {
			case i == 20:
				require.False(t, o.res.Succeeded)
				require.Equal(t, "of somebody", string(o.res.Responses[0].GetResponseRange().Kvs[0].Value))
			case i == 21:
				require.False(t, o.res.Succeeded)
			case txns[i].Queue == "":
				require.True(t, o.res.Succeeded)
				require.EqualValues(t, 1, o.res.Responses[0].GetResponseDeleteRange().Deleted)
			default:
				require.True(t, o.res.Succeeded)
				kvs := o.res.Responses[1].GetResponseRange().Kvs
				require.Len(t, kvs, 1)
				require.Equal(t, txns[i].Queue+"x", string(kvs[0].Key))
				require.Equal(t, o.res.Revision, kvs[0].CreateRevision)
			}
		}
	})
}

// If all comparisons hold, the request is flat. After one that does not hold, batches are nested for some time.
func TestLine_share_flat(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		flat := func(name string, more ...etcd.Txn) bool {
			t.Helper()
			txns := append(e.enters(name, 5), more...)
			outcomes, sent := e.together(t, txns)
			for i, o := range outcomes {
				require.NoError(t, o.err)
				require.Equal(t, i < 5, o.res.Succeeded)
				require.Equal(t, e.srv.Rev(), o.res.Revision)
				if i < 5 {
					require.Len(t, o.res.Responses, len(txns[i].Then))
					newest := o.res.Responses[1].GetResponseRange().Kvs[0]
					require.Equal(t, txns[i].Queue+"x", string(newest.Key))
					require.Equal(t, o.res.Revision, newest.CreateRevision)
				}
			}
			return len(nested(sent[0])) == 0
		}
		require.True(t, flat("a"))
		require.True(t, flat("b", leave("missing/x")))
		for i := range 16 {
			require.False(t, flat(fmt.Sprint("c", i)))
		}
		require.True(t, flat("d"))
	})
}

// seeing passes the context of each transaction to see.
type seeing struct {
	clientv3.KV
	see func(context.Context)
}

func (s seeing) Txn(ctx context.Context) clientv3.Txn { s.see(ctx); return s.KV.Txn(ctx) }

// Transactions one after the other never wait, also after one that has failed, and each is the caller's own request.
func TestLine_alone_isTheCallersOwnRequest(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable})
		_, err := e.Commit(t.Context(), leave("a/x"))
		require.Error(t, err)
		require.False(t, etcd.Refused(err))
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
