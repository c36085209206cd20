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
