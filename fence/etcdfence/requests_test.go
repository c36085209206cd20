package etcdfence_test

import (
	"context"
	"fmt"
	"math/rand/v2"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// requests makes random requests on few keys, so that they affect each other. The server refuses some of them.
type requests struct {
	*rand.Rand

	lease clientv3.LeaseID
	rev   func() int64 // a revision to read at
}

func (r *requests) key() string { return fmt.Sprintf("d/%d", r.IntN(5)) }

func (r *requests) some(opts ...clientv3.OpOption) []clientv3.OpOption {
	r.Shuffle(len(opts), func(i, j int) { opts[i], opts[j] = opts[j], opts[i] })
	return opts[:r.IntN(len(opts)+1)]
}

// op returns a random operation, a transaction only if depth is not 0.
func (r *requests) op(depth int) clientv3.Op {
	if depth > 0 && r.IntN(4) == 0 {
		return clientv3.OpTxn(r.cmps(), r.ops(depth-1), r.ops(depth-1))
	}
	switch r.IntN(3) {
	case 0:
		value := fmt.Sprint(r.IntN(4))
		opts := r.some(clientv3.WithPrevKV(), clientv3.WithLease(r.lease))
		switch r.IntN(8) {
		case 0:
			opts = []clientv3.OpOption{clientv3.WithIgnoreLease(), clientv3.WithPrevKV()}
		case 1:
			value, opts = "", []clientv3.OpOption{clientv3.WithIgnoreValue(), clientv3.WithLease(r.lease)}
		case 2:
			opts = []clientv3.OpOption{clientv3.WithLease(12345)} // no such lease
		}
		return clientv3.OpPut(r.key(), value, opts...)
	case 1:
		opts := r.some(clientv3.WithPrevKV())
		if r.IntN(3) == 0 {
			opts = append(opts, clientv3.WithRange("d/4"))
		}
		return clientv3.OpDelete(r.key(), opts...)
	default:
		return clientv3.OpGet(r.key(), r.some(
			clientv3.WithLimit(2), clientv3.WithCountOnly(), clientv3.WithKeysOnly(), clientv3.WithRange("d/9"),
			clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend), clientv3.WithRev(r.rev()),
			clientv3.WithMinModRev(5), clientv3.WithSerializable(),
		)...)
	}
}

func (r *requests) ops(depth int) []clientv3.Op {
	ops := make([]clientv3.Op, r.IntN(4))
	for i := range ops {
		ops[i] = r.op(depth)
	}
	return ops
}

func (r *requests) cmps() []clientv3.Cmp {
	cmps := make([]clientv3.Cmp, r.IntN(3))
	for i := range cmps {
		result := []string{"=", "!=", "<", ">"}[r.IntN(4)]
		switch r.IntN(4) {
		case 0:
			cmps[i] = clientv3.Compare(clientv3.Value(r.key()), result, fmt.Sprint(r.IntN(4)))
		case 1:
			cmps[i] = clientv3.Compare(clientv3.Version(r.key()), result, r.IntN(3))
		case 2:
			cmps[i] = clientv3.Compare(clientv3.LeaseValue(r.key()), result, r.lease)
		default:
			cmps[i] = clientv3.Compare(clientv3.CreateRevision(r.key()), result, r.IntN(9)).WithRange("d/3")
		}
	}
	return cmps
}

// request returns an operation for Do, which Put, Delete and Txn share their code with.
func (r *requests) request() clientv3.Op {
	if r.IntN(2) == 0 {
		return clientv3.OpTxn(r.cmps(), r.ops(2), r.ops(2))
	}
	return r.op(2)
}

// do makes a request and returns the answer as text.
func do(ctx context.Context, kv clientv3.KV, op clientv3.Op) (string, error) {
	resp, err := kv.Do(ctx, op)
	return fmt.Sprint((*pb.PutResponse)(resp.Put()), (*pb.RangeResponse)(resp.Get()),
		(*pb.DeleteRangeResponse)(resp.Del()), (*pb.TxnResponse)(resp.Txn())), err
}
