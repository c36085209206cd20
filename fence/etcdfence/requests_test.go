package etcdfence_test

import (
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// requests are operations of all kinds on few keys, so that they affect each other. The server refuses some of them.
func requests(lease clientv3.LeaseID) []clientv3.Op {
	ops := func(ops ...clientv3.Op) []clientv3.Op { return ops }
	is := func(value string) []clientv3.Cmp {
		return []clientv3.Cmp{clientv3.Compare(clientv3.Value("d/1"), "=", value)}
	}
	put, remove := clientv3.OpPut("d/1", "a", clientv3.WithPrevKV()), clientv3.OpDelete("d/1", clientv3.WithPrevKV())
	read, other := clientv3.OpGet("d/", clientv3.WithPrefix(), clientv3.WithLimit(2)), clientv3.OpPut("d/2", "b")
	third := clientv3.OpPut("d/3", "c")
	nested := clientv3.OpTxn(is("a"), ops(remove, read), ops(clientv3.OpTxn(nil, ops(put, other), nil)))
	return ops(
		put, other, remove, read, nested,
		clientv3.OpPut("d/1", "b", clientv3.WithLease(lease), clientv3.WithPrevKV()),
		clientv3.OpDelete("d/", clientv3.WithPrefix(), clientv3.WithPrevKV()), clientv3.OpDelete("d/2"),
		clientv3.OpTxn(nil, nil, nil), clientv3.OpTxn(nil, ops(read), nil), clientv3.OpTxn(nil, ops(read, put), nil),
		clientv3.OpTxn(nil, nil, ops(put)), clientv3.OpTxn(is("b"), nil, nil), clientv3.OpTxn(is("a"), ops(remove), nil),
		clientv3.OpTxn(is("b"), ops(read, put), ops(remove, read)), clientv3.OpTxn(is("a"), ops(third, nested), ops(nested, third)),
		clientv3.OpPut("d/1", "", clientv3.WithIgnoreValue()),      // refused if there is no value
		clientv3.OpPut("d/2", "c", clientv3.WithLease(lease+1)),    // refused, since there is no such lease
		clientv3.OpTxn(nil, ops(read), ops(put, put)),              // refused, since it puts one key twice
		clientv3.OpTxn(is("a"), ops(other, put, nested), ops(put)), // the same, in its inner transaction
	)
}

// do makes a request and returns the answer as text.
func do(ctx context.Context, kv clientv3.KV, op clientv3.Op) (string, error) {
	resp, err := kv.Do(ctx, op)
	return fmt.Sprint((*pb.PutResponse)(resp.Put()), (*pb.RangeResponse)(resp.Get()),
		(*pb.DeleteRangeResponse)(resp.Del()), (*pb.TxnResponse)(resp.Txn())), err
}
