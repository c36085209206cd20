package etcd

import (
	"context"
	"math"
	"reflect"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// A [Line] builds the protobuf messages of its transactions itself. clientv3.Txn copies each comparison by reflection, and
// each operation too: that cost 14 of the 53 allocations that an uncontended acquisition and its release add to gRPC's.

// Put puts a key on a lease; 0 is none.
func Put(key, value string, lease clientv3.LeaseID) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{
		RequestPut: &pb.PutRequest{Key: []byte(key), Value: []byte(value), Lease: int64(lease)},
	}}
}

// Delete deletes a key.
func Delete(key string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
		RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(key)},
	}}
}

// Get reads a key.
func Get(key string) *pb.RequestOp { return Range(&pb.RangeRequest{Key: []byte(key)}) }

// Range reads the keys of r, of which only the range, the limit, the order and KeysOnly may be set.
func Range(r *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
}

// Nested carries out t inside another transaction.
func Nested(t Txn) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: t.request()}}
}

func (t Txn) request() *pb.TxnRequest {
	return &pb.TxnRequest{Compare: compares(make([]*pb.Compare, 0, len(t.If)), t.If), Success: t.Then, Failure: t.Else}
}

func compares(to []*pb.Compare, cmps []clientv3.Cmp) []*pb.Compare {
	for _, cmp := range cmps {
		to = append(to, cmp.GetCompare())
	}
	return to
}

// Direct returns the service behind a KV. A KV that is not etcd's own may implement it, to receive a line's transactions
// as messages.
type Direct interface{ Direct() pb.KVClient }

var (
	// etcdsOwn and retrying are the types of a client's own KV and of the KVClient in it.
	etcdsOwn = reflect.TypeOf(clientv3.NewKVFromKVClient(nil, nil))
	retrying = reflect.TypeOf(clientv3.RetryKVClient(new(clientv3.Client)))
	// callOptions are the client's defaults. Its limit for requests, 2 MiB, is above the server's.
	callOptions = []grpc.CallOption{grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(math.MaxInt32)}
)

// rawOf returns a KVClient over the client's connection. It returns nil if a line's messages must go through the
// client's KV: there is no connection, or the client's owner has replaced the KV, for example by a namespace, or the
// KVClient in it. Either may change the keys, or send them over another connection.
func rawOf(client *clientv3.Client) pb.KVClient {
	if client.ActiveConnection() == nil || reflect.TypeOf(client.KV) != etcdsOwn {
		return nil
	}
	remote := behind(reflect.ValueOf(client.KV), "remote")
	if !remote.IsValid() || remote.Type() != retrying {
		return nil
	}
	if conn := behind(behind(remote, "kc"), "cc"); !conn.Equal(reflect.ValueOf(client.ActiveConnection())) {
		return nil
	}
	return clientv3.RetryKVClient(client)
}

// behind returns what is in the interface in a field of the struct that v points to. It returns the zero Value if there
// is no such thing, as in a client of another version.
func behind(v reflect.Value, field string) reflect.Value {
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return reflect.Value{}
	}
	if f := v.Elem().FieldByName(field); f.Kind() == reflect.Interface {
		return f.Elem()
	}
	return reflect.Value{}
}

// txn sends r once; see [once].
func (c *Conn) txn(ctx *once, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	kv := c.raw
	if d, ok := c.Client.KV.(Direct); ok {
		kv = d.Direct()
	}
	if kv == nil {
		resp, err := c.Client.Txn(ctx).If(cmpsOf(r.Compare)...).Then(opsOf(r.Success)...).Else(opsOf(r.Failure)...).Commit()
		return (*pb.TxnResponse)(resp), err
	}
	resp, err := kv.Txn(ctx, r, callOptions...)
	if err != nil {
		return nil, clientv3.ContextError(ctx, err)
	}
	return resp, nil
}

// transact sends r; see [Send].
func (a *Attempt) transact(r *pb.TxnRequest) (*pb.TxnResponse, error) {
	if a.copies == 1 { // this way there is no allocation
		if a.single.Context == nil {
			a.single.Context = a.Context() //nolint:fatcontext // it is the same for all requests
		}
		return a.conn.txn(&a.single, r)
	}
	return Send(a, func(ctx context.Context) (*pb.TxnResponse, error) {
		return a.conn.txn(&once{ctx}, r)
	})
}

func cmpsOf(list []*pb.Compare) []clientv3.Cmp {
	cmps := make([]clientv3.Cmp, len(list))
	for i, c := range list {
		cmps[i] = clientv3.FromCompare(c)
	}
	return cmps
}

// opsOf makes the client's operations of those that the functions above have made.
func opsOf(list []*pb.RequestOp) []clientv3.Op {
	ops := make([]clientv3.Op, len(list))
	for i, op := range list {
		switch r := op.Request.(type) {
		case *pb.RequestOp_RequestPut:
			ops[i] = clientv3.OpPut(string(r.RequestPut.Key), string(r.RequestPut.Value),
				clientv3.WithLease(clientv3.LeaseID(r.RequestPut.Lease)))
		case *pb.RequestOp_RequestDeleteRange:
			ops[i] = clientv3.OpDelete(string(r.RequestDeleteRange.Key))
		case *pb.RequestOp_RequestRange:
			ops[i] = getOf(r.RequestRange)
		case *pb.RequestOp_RequestTxn:
			ops[i] = clientv3.OpTxn(cmpsOf(r.RequestTxn.Compare), opsOf(r.RequestTxn.Success), opsOf(r.RequestTxn.Failure))
		}
	}
	return ops
}

func getOf(r *pb.RangeRequest) clientv3.Op {
	opts := []clientv3.OpOption{
		clientv3.WithLimit(r.Limit),
		clientv3.WithSort(clientv3.SortTarget(r.SortTarget), clientv3.SortOrder(r.SortOrder)),
	}
	if r.RangeEnd != nil {
		opts = append(opts, clientv3.WithRange(string(r.RangeEnd)))
	}
	if r.KeysOnly {
		opts = append(opts, clientv3.WithKeysOnly())
	}
	return clientv3.OpGet(string(r.Key), opts...)
}
