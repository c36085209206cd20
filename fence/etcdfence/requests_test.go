package etcdfence_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// requests makes random requests on few keys, so that they affect each other. The server refuses some of them.
type requests struct {
	*rand.Rand

	lease clientv3.LeaseID
}

func (r *requests) key() string { return fmt.Sprintf("d/%d", r.IntN(5)) }

func (r *requests) value() string { return fmt.Sprint(r.IntN(4)) }

// some returns some of the options.
func (r *requests) some(opts ...clientv3.OpOption) []clientv3.OpOption {
	return slices.DeleteFunc(opts, func(clientv3.OpOption) bool { return r.IntN(2) == 0 })
}

// op returns a random operation, a transaction only if depth is not 0.
func (r *requests) op(depth int) clientv3.Op {
	switch n := r.IntN(8); {
	case n < 2 && depth > 0:
		return clientv3.OpTxn(r.body(depth - 1))
	case n < 4:
		return clientv3.OpPut(r.key(), r.value(), r.some(clientv3.WithPrevKV(), clientv3.WithLease(r.lease))...)
	case n == 4: // refused without a lease of that name, or without a key
		return clientv3.OpPut(r.key(), "", clientv3.WithIgnoreValue(), clientv3.WithLease(r.lease+clientv3.LeaseID(r.IntN(2))))
	case n < 6:
		return clientv3.OpDelete(r.key(), r.some(clientv3.WithPrevKV(), clientv3.WithRange("d/4"))...)
	default:
		return clientv3.OpGet(r.key(), r.some(clientv3.WithRange("d/9"), clientv3.WithLimit(2), clientv3.WithSerializable())...)
	}
}

// body returns the parts of a transaction.
func (r *requests) body(depth int) (cmps []clientv3.Cmp, then, otherwise []clientv3.Op) {
	for range r.IntN(3) {
		cmps = append(cmps, clientv3.Compare(clientv3.Value(r.key()), []string{"=", "!=", "<", ">"}[r.IntN(4)], r.value()))
	}
	for range r.IntN(4) {
		then = append(then, r.op(depth))
	}
	for range r.IntN(4) {
		otherwise = append(otherwise, r.op(depth))
	}
	return cmps, then, otherwise
}

// request returns an operation for Do, which Put, Delete and Txn share their code with.
func (r *requests) request() clientv3.Op {
	if r.IntN(2) == 0 {
		return clientv3.OpTxn(r.body(2))
	}
	return r.op(2)
}

// do makes a request and returns the answer as text.
func do(ctx context.Context, kv clientv3.KV, op clientv3.Op) (string, error) {
	resp, err := kv.Do(ctx, op)
	return fmt.Sprint((*pb.PutResponse)(resp.Put()), (*pb.RangeResponse)(resp.Get()),
		(*pb.DeleteRangeResponse)(resp.Del()), (*pb.TxnResponse)(resp.Txn())), err
}
