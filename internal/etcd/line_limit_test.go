package etcd_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// bytesOf is the size of the keys and values of a request.
func bytesOf(r *pb.TxnRequest) int {
	n := 0
	for _, c := range r.Compare {
		n += len(c.Key) + len(c.GetValue())
	}
	for _, ops := range [][]*pb.RequestOp{r.Success, r.Failure} {
		for _, op := range ops {
			n += len(op.GetRequestRange().GetKey()) + len(op.GetRequestDeleteRange().GetKey()) +
				len(op.GetRequestPut().GetKey()) + len(op.GetRequestPut().GetValue())
			if op.GetRequestTxn() != nil {
				n += bytesOf(op.GetRequestTxn())
			}
		}
	}
	return n
}

func requireNoTies(t *testing.T, req *pb.TxnRequest) {
	t.Helper()
	seen := make(map[string]bool)
	for _, key := range put(req) {
		prefix := key[:strings.LastIndex(key, "/")+1]
		require.False(t, seen[prefix], "two of %s in one request", prefix)
		seen[prefix] = true
	}
}

// put returns the keys that a request may put if the comparisons hold, once for each transaction.
func put(r *pb.TxnRequest) []string {
	var keys []string
	for _, op := range r.Success {
		switch {
		case op.GetRequestPut() != nil:
			keys = append(keys, string(op.GetRequestPut().Key))
		case op.GetRequestTxn() != nil:
			keys = append(keys, put(op.GetRequestTxn())...)
		}
	}
	return keys
}

func tooMany(most int) func(*pb.TxnRequest) bool {
	return func(r *pb.TxnRequest) bool { return len(r.Success) > most }
}

func limitOps(e *env, most int) {
	e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{
		Match: request(tooMany(most)),
		Err:   rpctypes.ErrGRPCTooManyOps,
	})
}

func limitBytes(e *env, most int, err error) {
	e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{
		Match: request(func(r *pb.TxnRequest) bool { return bytesOf(r) > most }),
		Err:   err,
	})
}

// fill makes n transactions with a value of so many bytes, in one of the three places where a value can be.
func (e *env) fill(name string, n, bytes int) []etcd.Txn {
	value := strings.Repeat("v", bytes)
	txns := e.enters(name, n)
	for i, txn := range txns {
		op := etcd.Put(txn.Queue+"filler", value, e.lease)
		switch i % 3 {
		case 0:
			txns[i].Then = append(txn.Then, op)
		case 1:
			txns[i].Else = append(txn.Else, op)
		default:
			txns[i].If = append(txn.If, clientv3.Compare(clientv3.Value(txn.Queue+"not there"), "=", value))
		}
	}
	return txns
}

// requireAnswers requires no errors; the comparisons need not have held.
func requireAnswers(t *testing.T, all []outcome) {
	t.Helper()
	for i, o := range all {
		require.NoError(t, o.err, "number %d", i)
	}
}

// Waiting transactions are sent in as few requests as the server's limits allow.
func TestLine_limit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		outcomes, reqs := e.together(t, e.enters("a", 500))
		requireAnswers(t, outcomes)
		for _, req := range reqs {
			require.LessOrEqual(t, len(req.Success), 120)
		}
		require.LessOrEqual(t, len(reqs), 5)
		require.Zero(t, e.now())
	})
}

// A transaction that alone exceeds the line's limit, but not the server's, is sent all the same.
func TestLine_limit_bytes_largeOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		large := e.enter("large/x")
		large.Then[0] = etcd.Put("large/x", strings.Repeat("v", 5<<18), e.lease)
		for i, place := range []int{0, 5, 10} {
			name := fmt.Sprint("a", i)
			txns := e.enters(name, 10)
			txns = append(txns[:place:place], append([]etcd.Txn{large}, txns[place:]...)...)
			outcomes, reqs := e.together(t, txns)
			requireAllGood(t, outcomes)
			require.LessOrEqual(t, len(reqs), 3)
			_, err := e.Commit(t.Context(), leave("large/x"))
			require.NoError(t, err)
		}
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
		"operations, entering": {
			func(e *env) { limitOps(e, 16) },
			func(e *env, name string) []etcd.Txn { return e.enters(name, 100) }, 13,
		},
		"operations, leaving": {
			func(e *env) { limitOps(e, 16) },
			func(e *env, name string) []etcd.Txn { return e.plant(name, 100) }, 13,
		},
		"operations, both": {
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
		inBubble(t, name, func(t *testing.T) {
			e := start(t)
			tc.limit(e)
			for i, prefix := range []string{"first", "second", "third"} {
				txns := tc.txns(e, prefix)
				free := e.occupy(t)
				from := len(e.c.Calls(fakeetcd.Txn))
				all := e.sendAll(t.Context(), txns)
				free[0]()
				outcomes := receiveAll(t, all)
				calls := e.c.Calls(fakeetcd.Txn)[from:]
				if name == "bytes of a message" {
					// gRPC has the same text for an answer that is too large: the first request may have been carried
					// out.
					outcomes = slices.DeleteFunc(outcomes, func(o outcome) bool { return i == 0 && etcd.Transient(o.err) })
				}
				requireAnswers(t, outcomes)
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
		inBubble(t, status.Convert(refusal).Message(), func(t *testing.T) {
			e := start(t)
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
			requireAnswers(t, outcomes)
			require.GreaterOrEqual(t, carried(reqs[0]), 50)
		})
	}
}
