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

// Each call of If, Then and Else adds to those before it, and a change of what the caller has passed changes nothing.
func TestKV_Txn_collects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		key, h := contend(t, c.Client, "locks/a")
		cmp := clientv3.Compare(clientv3.CreateRevision("d"), "=", 0)
		ops := []clientv3.Op{clientv3.OpPut("d", "mine")}
		txn := newKV(t, c, h).Txn(t.Context()).Then(ops...).If(cmp).Then(clientv3.OpPut("d2", "too")).If()
		cmp.WithKeyBytes([]byte(key))
		ops[0] = clientv3.OpPut("d", "changed since")
		resp, err := txn.Commit()
		require.NoError(t, err)
		require.Len(t, resp.Responses, 2)
		require.Equal(t, map[string]string{"d": "mine", "d2": "too"}, contents(srv, "d"))
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
			require.NoError(t, kv.Check(ctx))
			require.NoError(t, second(kv.Txn(ctx).Commit()))
			require.NoError(t, second(kv.Txn(ctx).Then(clientv3.OpGet("d", clientv3.WithSerializable())).Commit()))
		}
		calls := c.Calls(fakeetcd.Any)[sent:]
		require.Len(t, calls, 9)
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
