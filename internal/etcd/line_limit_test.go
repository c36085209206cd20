package etcd_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

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
