package etcdfence

import (
	"context"
	"errors"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/queue"
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

// Holder is the handle of a held lock: a *lease.Lock or an *election.Leadership. The handle of a read lock is no
// Holder, because its token is a [fence.ReadToken]: a reader does not write.
type Holder interface {
	// IsOwner compares the create revision of the lock's key with the token's.
	IsOwner() clientv3.Cmp
	Token() fence.Token
}

// NewKV returns a KV whose writes are done only while the lock's key exists. The lock and the data must be in the same
// etcd, and kv must see the lock's key under its own name: apply a namespace to the returned KV and not to kv.
//
// The KV uses the token of the handle and ignores that of the context. It compares the lock's own key, which no other
// lock has, and so needs no name. The error of a refused write has the lock's key as the resource. Its highest token is
// that of the present owner, a writer or a reader, in the era of this handle, or 0 if no owner was found.
//
// NewKV sends nothing. Its error names the argument and what is legal.
func NewKV(kv clientv3.KV, holder Holder) (*KV, error) {
	if kv == nil {
		return nil, errors.New("etcdfence: kv is nil, want the KV of an etcd client")
	}
	if holder == nil {
		return nil, errors.New("etcdfence: holder is nil, want the handle of a held lock")
	}
	cmp, token := holder.IsOwner(), holder.Token()
	c, key := cmp.GetCompare(), string(cmp.KeyBytes())
	switch {
	case !token.Valid():
		return nil, fmt.Errorf("etcdfence: holder's token: %w %d: want 1 to 9223372036854775807, low 48 bits not 0",
			fence.ErrInvalidToken, int64(token))
	// A missing key has create revision 0, so a handle without a revision would be held forever.
	case c.Target != pb.Compare_CREATE || c.Result != pb.Compare_EQUAL || c.GetCreateRevision() != token.Revision(),
		key == "" || len(c.RangeEnd) > 0:
		return nil, fmt.Errorf("etcdfence: holder's IsOwner is {%v}, "+
			"want one key's create revision = %d, that of its token", c, token.Revision())
	}
	cmps := []clientv3.Cmp{cmp.Clone(), onLease(key)}
	return &KV{kv: kv, gate: &held{kv: kv, cmps: cmps, key: key, token: token}}, nil
}

// held is a gate that is open while a key exists with one create revision and with its lease.
type held struct {
	kv    clientv3.KV
	cmps  []clientv3.Cmp
	key   string
	token fence.Token
}

// onLease compares true while the key is attached to the lease in its name. A write that detaches the lease keeps the
// create revision, but the key is no longer a contender: the next contender in the queue holds the lock.
func onLease(key string) clientv3.Cmp {
	if form, ok := queue.FormOf([]byte(key)); ok {
		return clientv3.Compare(clientv3.LeaseValue(key), "=", form.Lease)
	}
	return clientv3.Compare(clientv3.LeaseValue(key), "!=", 0)
}

func (h *held) check(ctx context.Context) error {
	_, err := h.commit(ctx, body{})
	return err
}

func (h *held) commit(ctx context.Context, b body) (*clientv3.TxnResponse, error) {
	resp, err := etcd.Commit(ctx, h.kv, h.cmps, b.ops(), []clientv3.Op{h.successors()})
	if err != nil {
		return nil, err
	}
	if !resp.Succeeded {
		highest, reader := h.highest(resp.Responses[0])
		return nil, &fence.StaleError{Resource: h.key, Token: h.token, Highest: highest, ByReader: reader}
	}
	return b.response(resp), nil
}

// maxSuccessors bounds the answer to a refused write: below the prefix, nested names can have any number of keys.
const maxSuccessors = 8

// successors reads the contenders that came after this hold, oldest first. It also makes the comparison linearizable: a
// member of etcd answers a transaction without operations, or with serializable reads only, from its own state, which
// may be old and still have the lock's key.
func (h *held) successors() clientv3.Op {
	prefix := queue.Below([]byte(h.key))
	if prefix == "" { // in no queue
		return clientv3.OpGet(h.key)
	}
	return clientv3.OpGet(prefix, clientv3.WithPrefix(), clientv3.WithMinCreateRev(h.token.Revision()+1),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend), clientv3.WithLimit(maxSuccessors))
}

// highest returns the token of the oldest contender in read, which holds the lock now that this hold's key is gone. The
// flag reader reports whether that contender is a reader.
func (h *held) highest(read *pb.ResponseOp) (t fence.Token, reader bool) {
	prefix := queue.Below([]byte(h.key))
	if prefix == "" {
		return 0, false
	}
	for _, kv := range read.GetResponseRange().GetKvs() {
		if queue.Contends(prefix, kv) {
			t, _ = fence.NewToken(h.token.Era(), kv.CreateRevision) // 0 out of range
			return t, kv.Key[len(prefix)] == 'r'                    // the class of readers: see internal/queue
		}
	}
	return 0, false
}
