package etcdfence

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/queue"
)

// Holder is a lock that is held: a *lease.Lock or an *election.Leadership.
type Holder interface {
	// Held compares the create revision of the lock's key with the token's.
	Held() clientv3.Cmp
	Token() fence.Token
}

// NewKV returns a KV whose writes are done only while the lock's key is there. The lock and the data are in one etcd,
// and kv, which is used as it is, sees the lock's key under its own name: a namespace goes around the KV returned here.
//
// The token is the handle's, whatever the context carries. The error of a write that is refused has the lock's key as
// its resource, and as the highest token the present owner's, in the era of this handle, or 0 if nobody holds the lock
// or it cannot be told.
//
// The error of NewKV says which argument is wrong. Nothing is sent.
func NewKV(kv clientv3.KV, holder Holder) (*KV, error) {
	if kv == nil {
		return nil, errors.New("etcdfence: kv is nil, want an etcd client's")
	}
	if holder == nil {
		return nil, errors.New("etcdfence: holder is nil, want a lock that is held")
	}
	g, err := newHeld(kv, holder.Held(), holder.Token())
	if err != nil {
		return nil, err
	}
	return &KV{kv: kv, gate: g}, nil
}

// held is open while a key with one create revision is there, and on its lease.
type held struct {
	kv    clientv3.KV
	cmps  []clientv3.Cmp
	key   string
	token fence.Token
}

func newHeld(kv clientv3.KV, cmp clientv3.Cmp, token fence.Token) (*held, error) {
	c, key := cmp.GetCompare(), string(cmp.KeyBytes())
	switch {
	case !token.Valid():
		return nil, fmt.Errorf("etcdfence: holder's token: %w %d: want 1 to 9223372036854775807, low 48 bits not 0",
			fence.ErrInvalidToken, int64(token))
	// The create revision of a key that is not there is 0: a handle without one would be held for ever.
	case c.Target != pb.Compare_CREATE || c.Result != pb.Compare_EQUAL || c.GetCreateRevision() != token.Revision(),
		key == "" || len(c.RangeEnd) > 0:
		return nil, fmt.Errorf("etcdfence: holder's Held is {%v}, "+
			"want one key's create revision = %d, that of its token", c, token.Revision())
	}
	return &held{kv: kv, cmps: []clientv3.Cmp{cmp.Clone(), onLease(key)}, key: key, token: token}, nil
}

// onLease compares true while the key is on the lease that it is named after. A write that takes it off leaves its
// create revision as it is, but the key is no contender any more: the next in the queue holds the lock.
func onLease(key string) clientv3.Cmp {
	child, _, _ := strings.Cut(key[strings.LastIndexByte(key, '/')+1:], "-")
	if id, err := strconv.ParseInt(child, 16, 64); err == nil && id != 0 {
		return clientv3.Compare(clientv3.LeaseValue(key), "=", id)
	}
	return clientv3.Compare(clientv3.LeaseValue(key), "!=", 0)
}

func (h *held) claim(ctx context.Context) error { return h.check(ctx) }

func (h *held) check(ctx context.Context) error {
	_, err := h.commit(ctx, body{})
	return err
}

func (h *held) commit(ctx context.Context, b body) (*clientv3.TxnResponse, error) {
	resp, err := h.kv.Txn(ctx).If(h.cmps...).Then(b.ops()...).Else(h.successors()).Commit()
	if err != nil {
		return nil, err
	}
	if !resp.Succeeded {
		return nil, &fence.StaleError{Resource: h.key, Token: h.token, Highest: h.highest(resp.Responses[0])}
	}
	return b.response(resp), nil
}

// maxSuccessors bounds the answer to a write that is refused: nested names may have any number of keys there.
const maxSuccessors = 8

// successors reads who has come to the queue after this hold, oldest first. It must not be serializable, nor left out:
// etcd answers a transaction that has only serializable reads, or no operation, from a member that may be behind, and
// there a lost lock may be held still.
func (h *held) successors() clientv3.Op {
	prefix := h.queue()
	if prefix == "" {
		return clientv3.OpGet(h.key)
	}
	return clientv3.OpGet(prefix, clientv3.WithPrefix(), clientv3.WithMinCreateRev(h.token.Revision()+1),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend), clientv3.WithLimit(maxSuccessors))
}

// queue is the prefix of all keys of the lock's name, "" of a key that is in no queue.
func (h *held) queue() string { return h.key[:strings.LastIndexByte(h.key, '/')+1] }

// highest is the token of the oldest contender: it holds the lock since this hold's key is gone.
func (h *held) highest(read *pb.ResponseOp) fence.Token {
	prefix := h.queue()
	if prefix == "" {
		return 0
	}
	for _, kv := range read.GetResponseRange().GetKvs() {
		if queue.Contends(prefix, kv) {
			t, _ := fence.NewToken(h.token.Era(), kv.CreateRevision) // 0 out of range
			return t
		}
	}
	return 0
}
