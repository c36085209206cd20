package etcdfence

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// KV is a [clientv3.KV] whose writes go through a gate: [NewKV] makes one that is open while a lock is held,
// [Marks.KV] one that is open while no newer token has been seen. Whatever it sends is one transaction with the gate's
// comparison, so that the server decides in one step with the write.
//
// On success the caller gets what the same call gives without the gate, headers and revisions included. If the gate is
// shut nothing is written, and the error is a [*fence.StaleError], which matches [fence.ErrStale]. An error of the
// client is returned as it is: after a lost answer the write may have been done or not, and is not sent again.
//
// It fits where a clientv3.KV does: in namespace.NewKV, and, as the KV of a client that [clientv3.NewCtxClient] has
// made, in concurrency.NewSTM. It is safe for concurrent use, and there is nothing to close.
type KV struct {
	kv   clientv3.KV // not embedded: a method that etcd adds to it must not pass by the gate
	gate gate
}

var _ clientv3.KV = (*KV)(nil)

// gate is a condition at the server.
type gate interface {
	// claim installs the tenure.
	claim(ctx context.Context) error
	// check looks whether the gate is open.
	check(ctx context.Context) error
	// commit carries out b in one step with the condition.
	commit(ctx context.Context, b body) (*clientv3.TxnResponse, error)
}

// Claim installs the tenure. It is called once after a grant, before the first read of what the lock protects.
//
// With [NewKV] the grant has installed it, and Claim is [KV.Check]. With [Marks.KV] it raises the resource's mark to
// the context's token; see [Marks.Claim].
func (k *KV) Claim(ctx context.Context) error { return k.gate.claim(ctx) }

// Check looks whether a write would be accepted now. It writes nothing. Its answer can be out of date by the time it
// returns: use it to give up early. The errors are those of a write.
func (k *KV) Check(ctx context.Context) error { return k.gate.check(ctx) }

// Put puts a key. The options are those of [clientv3.OpPut].
func (k *KV) Put(ctx context.Context, key, val string, opts ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	r, err := k.Do(ctx, clientv3.OpPut(key, val, opts...))
	return r.Put(), err
}

// Delete deletes a key, or a range of keys. The options are those of [clientv3.OpDelete].
func (k *KV) Delete(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	r, err := k.Do(ctx, clientv3.OpDelete(key, opts...))
	return r.Del(), err
}

// Get reads, and does not look at the gate: whoever has lost the lock may still read. What it has read can be changed
// by a successor right after; let a write depend on it by a comparison in [KV.Txn].
func (k *KV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return k.kv.Get(ctx, key, opts...)
}

// GetStream reads as [KV.Get] does.
func (k *KV) GetStream(ctx context.Context, key string, opts ...clientv3.OpOption) (clientv3.GetStreamChan, error) {
	return k.kv.GetStream(ctx, key, opts...)
}

// Compact is refused with [errors.ErrUnsupported]: etcd has no way to tie it to a condition. Call the client's own.
func (k *KV) Compact(context.Context, int64, ...clientv3.CompactOption) (*clientv3.CompactResponse, error) {
	return nil, fmt.Errorf("etcdfence: a compaction cannot be fenced: %w", errors.ErrUnsupported)
}

// Do carries out one operation. A read does not look at the gate, a transaction does even if it only reads.
func (k *KV) Do(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	var b body
	switch {
	case op.IsGet():
		return k.kv.Do(ctx, op)
	case op.IsTxn():
		b.cmps, b.then, b.otherwise = op.Txn()
	default:
		b.then = []clientv3.Op{op}
	}
	resp, err := k.gate.commit(ctx, b)
	switch {
	case err != nil:
		return clientv3.OpResponse{}, err
	case op.IsPut():
		put := (*clientv3.PutResponse)(resp.Responses[0].GetResponsePut())
		put.Header = resp.Header // the operation's own has the revision alone
		return put.OpResponse(), nil
	case op.IsDelete():
		del := (*clientv3.DeleteResponse)(resp.Responses[0].GetResponseDeleteRange())
		del.Header = resp.Header
		return del.OpResponse(), nil
	default:
		return resp.OpResponse(), nil
	}
}

// Txn is a transaction that is carried out if the gate is open; the caller's own comparisons then choose between Then
// and Else as ever. If the gate is shut neither runs, reads included. It is for one goroutine. If, Then and Else are
// called at most once each and in this order; where etcd's own transaction panics for that, Commit returns an error.
func (k *KV) Txn(ctx context.Context) clientv3.Txn { return &txn{ctx: ctx, gate: k.gate} }

// body is what is to be done if the gate is open.
type body struct {
	cmps            []clientv3.Cmp
	then, otherwise []clientv3.Op
}

// bare is a body without a condition of its own. It needs no transaction within the gate's, so that it may have as many
// operations as without the gate, and one that only reads is not written to etcd's log.
func (b body) bare() bool { return len(b.cmps) == 0 && len(b.otherwise) == 0 }

// ops are the body as the first operations of the branch behind the gate.
func (b body) ops() []clientv3.Op {
	if b.bare() {
		return b.then
	}
	return []clientv3.Op{clientv3.OpTxn(b.cmps, b.then, b.otherwise)}
}

// response is what the body would have been answered without the gate; resp is that to the branch behind it.
func (b body) response(resp *clientv3.TxnResponse) *clientv3.TxnResponse {
	if b.bare() {
		return &clientv3.TxnResponse{Header: resp.Header, Succeeded: true, Responses: resp.Responses[:len(b.then)]}
	}
	inner := resp.Responses[0].GetResponseTxn() // its own header is empty
	return &clientv3.TxnResponse{Header: resp.Header, Succeeded: inner.Succeeded, Responses: inner.Responses}
}
