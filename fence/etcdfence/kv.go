package etcdfence

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// KV is a [clientv3.KV] whose writes pass a gate. The gate of [NewKV] is open while a lock is held; that of [Marks.KV]
// is open while no newer token and no other lock was accepted. KV sends each write as one transaction with the gate's
// comparison, so the server decides in one step with the write.
//
// On success the response is that of the same call without the gate, including headers and revisions. If the gate is
// closed nothing is written, and the error is a [*fence.StaleError] or, with [Marks.KV], perhaps an
// [*fence.OtherLockError]. KV returns the client's errors unchanged. After a lost answer the write may have been done;
// KV does not send it again.
//
// Use it like any clientv3.KV: in namespace.NewKV, or, as the KV of a client from [clientv3.NewCtxClient], in
// concurrency.NewSTM. It is safe for concurrent use and need not be closed.
type KV struct {
	kv   clientv3.KV // not embedded: a method that etcd adds later must not bypass the gate
	gate gate
}

var _ clientv3.KV = (*KV)(nil)

// gate is a condition that the server checks.
type gate interface {
	// check reports whether the gate is open.
	check(ctx context.Context) error
	// commit does b in one step with the condition.
	commit(ctx context.Context, b body) (*clientv3.TxnResponse, error)
}

// Check reports whether a write would be accepted now. It writes nothing. The answer can be out of date when Check
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

// Get reads without the gate, so a holder that has lost the lock can still read. A successor can change the data right
// after. For a write that depends on the read, use a comparison in [KV.Txn].
func (k *KV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return k.kv.Get(ctx, key, opts...)
}

// GetStream reads as [KV.Get] does.
func (k *KV) GetStream(ctx context.Context, key string, opts ...clientv3.OpOption) (clientv3.GetStreamChan, error) {
	return k.kv.GetStream(ctx, key, opts...)
}

// Compact returns [errors.ErrUnsupported], because etcd cannot make it depend on a condition. Call the client's
// Compact.
func (k *KV) Compact(context.Context, int64, ...clientv3.CompactOption) (*clientv3.CompactResponse, error) {
	return nil, fmt.Errorf("etcdfence: a compaction cannot be fenced: %w", errors.ErrUnsupported)
}

// Do does one operation. A read does not pass the gate. A transaction does, even if it only reads.
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
		put.Header = resp.Header // the operation's own header has only the revision
		return put.OpResponse(), nil
	case op.IsDelete():
		del := (*clientv3.DeleteResponse)(resp.Responses[0].GetResponseDeleteRange())
		del.Header = resp.Header
		return del.OpResponse(), nil
	default:
		return resp.OpResponse(), nil
	}
}

// Txn returns a transaction. If the gate is open, the caller's comparisons choose between Then and Else as usual. If it
// is closed, neither runs, not even reads. Use it in one goroutine. If, Then and Else may come in any order, and each
// call adds to the calls before it.
func (k *KV) Txn(ctx context.Context) clientv3.Txn { return &txn{ctx: ctx, gate: k.gate} }

// txn collects the parts of a transaction until Commit. It does not share the caller's slices and keys.
type txn struct {
	ctx  context.Context //nolint:containedctx // clientv3.KV gives it to Txn, clientv3.Txn takes none
	gate gate
	body body
}

func (t *txn) If(cmps ...clientv3.Cmp) clientv3.Txn {
	for i := range cmps {
		t.body.cmps = append(t.body.cmps, cmps[i].Clone())
	}
	return t
}

func (t *txn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.body.then = append(t.body.then, ops...)
	return t
}

func (t *txn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.body.otherwise = append(t.body.otherwise, ops...)
	return t
}

func (t *txn) Commit() (*clientv3.TxnResponse, error) { return t.gate.commit(t.ctx, t.body) }

// body is the caller's transaction, which the server runs if the gate is open.
type body struct {
	cmps            []clientv3.Cmp
	then, otherwise []clientv3.Op
}

// bare reports whether the body has no condition. A bare body needs no nested transaction: it can have as many
// operations as without the gate, and etcd does not log it if it only reads.
func (b body) bare() bool { return len(b.cmps) == 0 && len(b.otherwise) == 0 }

// ops returns the body as the first operations of the gate's Then.
func (b body) ops() []clientv3.Op {
	if b.bare() {
		return b.then
	}
	return []clientv3.Op{clientv3.OpTxn(b.cmps, b.then, b.otherwise)}
}

// response returns the response to the body as it would be without the gate; resp is the response to the gate's Then.
func (b body) response(resp *clientv3.TxnResponse) *clientv3.TxnResponse {
	if b.bare() {
		return &clientv3.TxnResponse{Header: resp.Header, Succeeded: true, Responses: resp.Responses[:len(b.then)]}
	}
	inner := resp.Responses[0].GetResponseTxn() // its own header is empty
	return &clientv3.TxnResponse{Header: resp.Header, Succeeded: inner.Succeeded, Responses: inner.Responses}
}
