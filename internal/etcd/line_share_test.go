package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// If all comparisons hold, the request is flat. After one that does not hold, batches are nested for some time.
func TestLine_share_flat(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		flat := func(name string, more ...etcd.Txn) bool {
			t.Helper()
			txns := append(e.enters(name, 5), more...)
			outcomes, sent := e.together(t, txns)
			for i, o := range outcomes {
				require.NoError(t, o.err)
				require.Equal(t, i < 5, o.res.Succeeded)
				require.Equal(t, e.srv.Rev(), o.res.Revision)
				if i < 5 {
					require.Len(t, o.res.Responses, len(txns[i].Then))
					newest := o.res.Responses[1].GetResponseRange().Kvs[0]
					require.Equal(t, txns[i].Queue+"x", string(newest.Key))
					require.Equal(t, o.res.Revision, newest.CreateRevision)
				}
			}
			return len(nested(sent[0])) == 0
		}
		require.True(t, flat("a"))
		require.True(t, flat("b", leave("missing/x")))
		for i := range 16 {
			require.False(t, flat(fmt.Sprint("c", i)))
		}
		require.True(t, flat("d"))
	})
}

// seeing passes the context of each transaction to see.
type seeing struct {
	clientv3.KV
	see func(context.Context)
}

func (s seeing) Txn(ctx context.Context) clientv3.Txn { s.see(ctx); return s.KV.Txn(ctx) }

// Transactions one after the other never wait, also after one that has failed, and each is the caller's own request.
func TestLine_alone_isTheCallersOwnRequest(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable})
		_, err := e.Commit(t.Context(), leave("a/x"))
		require.Error(t, err)
		require.False(t, etcd.Refused(err))
		e.owner.run = func(func(context.Context)) { t.Error("a goroutine for a transaction alone") }
		var seen []context.Context
		e.c.KV = seeing{e.c.KV, func(ctx context.Context) { seen = append(seen, ctx) }}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		sent := e.record()
		txns := []etcd.Txn{e.enter("a/x"), e.enter("a/x"), leave("a/x"), e.enter("a/x"), {Then: []*pb.RequestOp{
			etcd.Range(&pb.RangeRequest{Key: []byte("a/"), RangeEnd: []byte("a0"), KeysOnly: true}),
			etcd.Nested(e.enter("b/x")),
		}}}
		for _, txn := range txns {
			_, err := e.Commit(ctx, txn)
			require.NoError(t, err)
		}
		require.Zero(t, e.now())
		require.Len(t, seen, len(txns))
		for i, req := range sent() {
			require.Equal(t, ctx.Done(), seen[i].Done(), "not a derived context either")
			want := &pb.TxnRequest{Success: txns[i].Then, Failure: txns[i].Else}
			for _, cmp := range txns[i].If {
				want.Compare = append(want.Compare, cmp.GetCompare())
			}
			require.Equal(t, want.String(), req.String())
		}
	})
}

// bytesOf is the size of the values that a request may put.
func bytesOf(r *pb.TxnRequest) (n int) {
	for _, op := range leaves(r) {
		n += len(op.GetRequestPut().GetValue())
	}
	return n
}

func limitOps(e *env, most int) {
	e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{
		Match: request(func(r *pb.TxnRequest) bool { return len(r.Success) > most }),
		Err:   rpctypes.ErrGRPCTooManyOps,
	})
}

func limitBytes(e *env, most int, err error) {
	e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{
		Match: request(func(r *pb.TxnRequest) bool { return bytesOf(r) > most }),
		Err:   err,
	})
}

// fill makes n transactions with a value of so many bytes.
func (e *env) fill(name string, n, size int) []etcd.Txn {
	txns := e.enters(name, n)
	for i, txn := range txns {
		txns[i].Then[0] = etcd.Put(txn.Queue+"x", strings.Repeat("v", size), e.lease)
	}
	return txns
}

// Waiting transactions are sent in as few requests as the server's limits allow.
func TestLine_limit(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		free := e.occupy(t)
		gate := make(chan struct{})
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 3, Until: gate}) // then all lanes are in use, and 140 wait
		sent := e.record()
		all := e.sendAll(t.Context(), e.enters("a", 500))
		require.Len(t, sent(), 3, "transactions that fill a request do not wait for the one that is under way")
		free()
		close(gate)
		requireAllGood(t, receiveAll(t, all))
		for _, req := range sent() {
			require.LessOrEqual(t, len(req.Success), 120)
		}
		require.Len(t, sent(), 5)
		require.Zero(t, e.now())
	})
}

// One batch is enough to learn the lower limits of a server, and none of its callers fails. The next batches are
// small enough at once, and at least half as large as the limit allows.
func TestLine_limit_learnt(t *testing.T) {
	tooLarge := status.Error(codes.ResourceExhausted, "grpc: received message larger than max (1000000 vs. 200000)")
	for name, tc := range map[string]struct {
		limit func(*env)
		txns  func(e *env, name string) []etcd.Txn
		most  int // requests for 100, later
	}{
		"operations": {
			func(e *env) { limitOps(e, 16) },
			func(e *env, name string) []etcd.Txn { return append(e.enters(name, 50), e.plant(name, 50)...) }, 13,
		},
		"one operation": {
			func(e *env) { limitOps(e, 3) },
			func(e *env, name string) []etcd.Txn { return e.enters(name, 100) }, 100,
		},
		"bytes": {
			func(e *env) { limitBytes(e, 100<<10, rpctypes.ErrGRPCRequestTooLarge) },
			func(e *env, name string) []etcd.Txn { return e.fill(name, 100, 8<<10) }, 20,
		},
		"bytes of a message": {
			func(e *env) { limitBytes(e, 100<<10, tooLarge) },
			func(e *env, name string) []etcd.Txn { return e.fill(name, 100, 8<<10) }, 20,
		},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			tc.limit(e)
			for i, prefix := range []string{"first", "second", "third"} {
				from := len(e.c.Calls(fakeetcd.Txn))
				outcomes, _ := e.together(t, tc.txns(e, prefix))
				calls := e.c.Calls(fakeetcd.Txn)[from+1:] // without the occupant's
				if name == "bytes of a message" {
					// gRPC has the same text for an answer that is too large: the first request may have been carried
					// out.
					outcomes = slices.DeleteFunc(outcomes, func(o outcome) bool { return i == 0 && etcd.Transient(o.err) })
				}
				requireAllGood(t, outcomes)
				if i == 0 {
					require.Error(t, calls[0].Err, "the limit is not met: the test proves nothing")
					continue
				}
				for _, call := range calls {
					require.NoError(t, call.Err)
				}
				require.LessOrEqual(t, len(calls), tc.most)
			}
		})
	}
}

// These errors say nothing about the size of a request. All callers get them, and the next batch is no smaller.
func TestLine_limit_notLearnt(t *testing.T) {
	for _, refusal := range []error{
		rpctypes.ErrGRPCNoSpace, rpctypes.ErrGRPCRequestTooManyRequests, rpctypes.ErrGRPCPermissionDenied,
		rpctypes.ErrGRPCLeaseNotFound, rpctypes.ErrGRPCInvalidAuthToken, rpctypes.ErrGRPCDuplicateKey,
	} {
		bubbleOf(t, status.Convert(refusal).Message(), func(t *testing.T, e *env) {
			remove := e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Match: request(puts), Err: refusal})
			outcomes, reqs := e.together(t, e.fill("a", 50, 10<<10))
			for _, o := range outcomes {
				require.ErrorIs(t, o.err, rpctypes.Error(refusal))
				require.Equal(t, !etcd.TooMuch(rpctypes.Error(refusal)), etcd.Refused(o.err))
			}
			if errors.Is(refusal, rpctypes.ErrGRPCNoSpace) || errors.Is(refusal, rpctypes.ErrGRPCRequestTooManyRequests) {
				require.Len(t, reqs, 1, "if there is no room for the batch, there is none for its parts")
			}
			remove()
			outcomes, reqs = e.together(t, e.fill("b", 50, 10<<10))
			requireAllGood(t, outcomes)
			require.GreaterOrEqual(t, carried(reqs[0]), 50)
		})
	}
}
