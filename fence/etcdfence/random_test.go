package etcdfence_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// call is one random request, to be made with and without the gate.
type call struct {
	name string
	do   func(ctx context.Context, kv clientv3.KV) (string, error)
}

// requests makes random requests on few keys, so that they meet. Some are ones that the server refuses.
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

// one is a request that is no transaction: its arguments.
func (r *requests) one() (kind, key, value string, opts []clientv3.OpOption) {
	switch r.IntN(3) {
	case 0:
		value = fmt.Sprint(r.IntN(4))
		opts = r.some(clientv3.WithPrevKV(), clientv3.WithLease(r.lease))
		switch r.IntN(8) {
		case 0:
			opts = []clientv3.OpOption{clientv3.WithIgnoreLease(), clientv3.WithPrevKV()}
		case 1:
			value, opts = "", []clientv3.OpOption{clientv3.WithIgnoreValue(), clientv3.WithLease(r.lease)}
		case 2:
			opts = []clientv3.OpOption{clientv3.WithLease(12345)} // there is none
		}
		return "put", r.key(), value, opts
	case 1:
		opts = r.some(clientv3.WithPrevKV())
		if r.IntN(3) == 0 {
			opts = append(opts, clientv3.WithRange("d/4"))
		}
		return "delete", r.key(), "", opts
	default:
		opts = r.some(
			clientv3.WithLimit(2), clientv3.WithCountOnly(), clientv3.WithKeysOnly(), clientv3.WithRange("d/9"),
			clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortDescend), clientv3.WithRev(r.rev()),
			clientv3.WithMinModRev(5), clientv3.WithSerializable(),
		)
		return "get", r.key(), "", opts
	}
}

func (r *requests) op(depth int) clientv3.Op {
	if depth > 0 && r.IntN(4) == 0 {
		return clientv3.OpTxn(r.cmps(), r.ops(depth-1), r.ops(depth-1))
	}
	switch kind, key, value, opts := r.one(); kind {
	case "put":
		return clientv3.OpPut(key, value, opts...)
	case "delete":
		return clientv3.OpDelete(key, opts...)
	default:
		return clientv3.OpGet(key, opts...)
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

func (r *requests) call() call {
	if r.IntN(3) == 0 { // one of the methods
		kind, key, value, opts := r.one()
		return call{kind, func(ctx context.Context, kv clientv3.KV) (string, error) {
			switch kind {
			case "put":
				resp, err := kv.Put(ctx, key, value, opts...)
				return (*pb.PutResponse)(resp).String(), err
			case "delete":
				resp, err := kv.Delete(ctx, key, opts...)
				return (*pb.DeleteRangeResponse)(resp).String(), err
			default:
				resp, err := kv.Get(ctx, key, opts...)
				return (*pb.RangeResponse)(resp).String(), err
			}
		}}
	}
	if op := r.op(2); r.IntN(2) == 0 {
		return call{"do", func(ctx context.Context, kv clientv3.KV) (string, error) {
			resp, err := kv.Do(ctx, op)
			return fmt.Sprint((*pb.PutResponse)(resp.Put()), (*pb.RangeResponse)(resp.Get()),
				(*pb.DeleteRangeResponse)(resp.Del()), (*pb.TxnResponse)(resp.Txn())), err
		}}
	}
	cmps, then, otherwise := r.cmps(), r.ops(2), r.ops(2)
	hasIf, hasElse := r.IntN(3) > 0, r.IntN(3) > 0
	return call{"txn", func(ctx context.Context, kv clientv3.KV) (string, error) {
		txn := kv.Txn(ctx)
		if hasIf {
			txn = txn.If(cmps...)
		}
		txn = txn.Then(then...)
		if hasElse {
			txn = txn.Else(otherwise...)
		}
		resp, err := txn.Commit()
		return (*pb.TxnResponse)(resp).String(), err
	}}
}

// twins are two servers with the same contents.
type twins struct {
	plain, gated   *fakeetcd.Server
	without, under *fakeetcd.Client
}

func newTwins(t *testing.T) (*twins, *requests) {
	t.Helper()
	var w twins
	w.plain, w.without = start(t)
	w.gated, w.under = start(t)
	one, err := w.without.Grant(t.Context(), 3600)
	require.NoError(t, err)
	other, err := w.under.Grant(t.Context(), 3600)
	require.NoError(t, err)
	require.Equal(t, one.ID, other.ID)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return &w, &requests{rand.New(rand.NewPCG(seed, 1)), one.ID, func() int64 { return w.plain.Rev() - 1 }}
}

// steps is the length of a random test.
const steps = 3000

// compare makes random calls with and without the gate. Refusals by the server are among them.
func (w *twins) compare(t *testing.T, r *requests, kv clientv3.KV, ctx context.Context) { //nolint:revive // t is first
	t.Helper()
	refused := 0
	for range steps {
		c := r.call()
		want, wantErr := c.do(ctx, w.without)
		got, err := c.do(ctx, kv)
		require.Equal(t, wantErr, err, c.name)
		require.Equal(t, want, got, c.name)
		require.Equal(t, w.plain.Rev(), w.gated.Rev(), c.name)
		if err != nil {
			refused++
		}
	}
	require.Equal(t, fmt.Sprint(w.plain.Keys("")), fmt.Sprint(w.gated.Keys("")))
	require.Positive(t, refused)
	require.Less(t, refused, steps/2, "most of it is accepted, or the test compares little")
}

// While the lock is held a caller cannot tell that there is a gate.
func TestNewKV_answersAsWithout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := newTwins(t)
		contend(t, w.without.Client, "locks/a")
		_, h := contend(t, w.under.Client, "locks/a")
		w.compare(t, r, newKV(t, w.under, h), t.Context())
	})
}

// Nor can the holder of the newest token.
func TestMarks_KV_answersAsWithout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := newTwins(t)
		w.plain.Put("fence/r", "00000000000000000041")
		w.gated.Put("fence/r", "00000000000000000041")
		w.compare(t, r, markKV(t, w.under, "r"), with(t, 41))
	})
}

// A write that raises the mark is answered as without it too, but for the revision of one that changes nothing else.
func TestMarks_KV_answersAsWithout_raising(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := newTwins(t)
		kv := markKV(t, w.under, "r")
		token, same := fence.Token(1), 0
		for range steps {
			c, before := r.call(), w.plain.Rev()
			want, wantErr := c.do(t.Context(), w.without)
			got, err := c.do(with(t, token), kv)
			require.Equal(t, wantErr, err, c.name)
			switch {
			case w.plain.Rev() != before:
				require.Equal(t, want, got, c.name)
				same++
				fallthrough
			case w.gated.Rev() != before: // the mark alone
				require.Equal(t, token.String(), fmt.Sprint(mustParse(t, w.gated, "fence/r")))
				token++
			}
			for w.plain.Rev() < w.gated.Rev() {
				w.plain.Put("fence/r", "")
			}
			require.Equal(t, w.plain.Rev(), w.gated.Rev(), c.name)
		}
		require.Greater(t, same, steps/10)
		require.Equal(t, fmt.Sprint(w.plain.Keys("d/")), fmt.Sprint(w.gated.Keys("d/")))
	})
}
