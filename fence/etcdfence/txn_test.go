package etcdfence_test

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence/etcdfence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// If, Then and Else come at most once each and in this order, as etcd's own transaction demands.
func TestKV_Txn_order(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		key, h := contend(t, c.Client, "locks/a")
		kv := newKV(t, c, h)
		rev := srv.Rev()
		for want, txn := range map[string]clientv3.Txn{
			"If after If":     kv.Txn(t.Context()).If().If(),
			"If after Then":   kv.Txn(t.Context()).Then(clientv3.OpPut("d", "")).If(),
			"Then after Then": kv.Txn(t.Context()).Then(clientv3.OpPut("d", "")).Then(),
			"Then after Else": kv.Txn(t.Context()).Else(clientv3.OpPut("d", "")).Then(clientv3.OpPut("d", "")),
			"Else after Else": kv.Txn(t.Context()).Else(clientv3.OpPut("d", "")).Else(),
		} {
			_, err := txn.Commit()
			require.ErrorContains(t, err, want)
		}
		require.Equal(t, rev, srv.Rev())

		cmp := clientv3.Compare(clientv3.CreateRevision("d"), "=", 0)
		ops := []clientv3.Op{clientv3.OpPut("d", "mine")}
		txn := kv.Txn(t.Context()).If(cmp).Then(ops...)
		cmp.WithKeyBytes([]byte(key))
		ops[0] = clientv3.OpPut("d", "changed since")
		_, err := txn.Commit()
		require.NoError(t, err)
		require.Equal(t, map[string]string{"d": "mine"}, contents(srv, "d"))
	})
}

// A member of etcd answers a transaction of serializable reads only, or without operations, from its own state, which
// may be old and still have a lost lock's key. Whatever the caller asks for, no such transaction is sent.
func TestKV_asksNoMemberThatIsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := start(t)
		_, h := contend(t, c.Client, "locks/a")
		granted, err := c.Grant(t.Context(), 60)
		require.NoError(t, err)
		alone := enter(t, c.Client, "no-queue", granted.ID)
		ctx := with(t, 41)
		require.NoError(t, newMarks(t, c).Claim(ctx, "r"))
		sent := len(c.Calls(fakeetcd.Any))
		for _, kv := range []*etcdfence.KV{newKV(t, c, h), newKV(t, c, alone), markKV(t, c, "r")} {
			require.NoError(t, kv.Claim(ctx))
			require.NoError(t, kv.Check(ctx))
			require.NoError(t, second(kv.Txn(ctx).Commit()))
			require.NoError(t, second(kv.Txn(ctx).Then(clientv3.OpGet("d", clientv3.WithSerializable())).Commit()))
		}
		calls := c.Calls(fakeetcd.Any)[sent:]
		require.Len(t, calls, 12)
		for _, call := range calls {
			switch r := call.Request.(type) {
			case *pb.RangeRequest:
				require.False(t, r.Serializable)
			case *pb.TxnRequest:
				require.True(t, slices.ContainsFunc(append(r.Success, r.Failure...), func(op *pb.RequestOp) bool {
					return op.GetRequestRange() != nil && !op.GetRequestRange().Serializable
				}), "%v", r)
			default:
				require.Fail(t, "another request", "%v", r)
			}
		}
	})
}
