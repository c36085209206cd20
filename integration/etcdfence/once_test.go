package etcdfence_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/etcdfence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// A write whose answer a server or a proxy replaces by Canceled is not sent again, as etcd's client would do.
func TestKV_sendsAWriteOnce(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	held := rig.MustLock(t, rig.NewSession(t, srv.Client(t), lease.Options{}), "n")
	var armed atomic.Bool
	client := etcdtest.NewClient(t, []string{srv.Endpoint()}, func(cfg *clientv3.Config) {
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainUnaryInterceptor(func(ctx context.Context,
			method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
		) error {
			err := invoke(ctx, method, req, reply, cc, opts...)
			if txn, ok := req.(*pb.TxnRequest); ok && len(txn.Success) > 0 && reply.(*pb.TxnResponse).Succeeded && armed.Swap(false) {
				return status.Error(codes.Canceled, "")
			}
			return err
		}))
	})
	for name, kv := range map[string]*etcdfence.KV{"NewKV": heldBy(t, client, held), "Marks": markedBy(t, client, "r")} {
		ctx := fence.NewContext(rig.Bounded(t), held.Token())
		armed.Store(true)
		_, err := kv.Txn(ctx).If(clientv3.Compare(clientv3.Version(name), "=", 0)).Then(clientv3.OpPut(name, "")).Commit()
		require.ErrorContains(t, err, "may have been carried out", name)
		require.NotErrorIs(t, err, context.Canceled, name)
		require.NoError(t, ctx.Err())
		got, err := client.Get(ctx, name)
		require.NoError(t, err)
		require.Len(t, got.Kvs, 1, name)
		require.EqualValues(t, 1, got.Kvs[0].Version, name)
	}
}
