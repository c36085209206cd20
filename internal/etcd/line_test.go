package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

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
			_, sent := e.together(t, append(e.enters(name, 5), more...))
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

// job is a caller's transaction, on a key that no other job has.
type job struct {
	etcd.Txn

	key   string
	holds bool  // its comparisons hold
	fault error // why etcd refuses it, whatever it shares a request with
}

// jobs makes transactions of all kinds, a few of them at fault.
func (e *env) jobs(r *rand.Rand, n int) []job {
	list := make([]job, n)
	for i := range list {
		key := fmt.Sprintf("%d-%d/x", e.srv.Rev(), i)
		switch j, kind := &list[i], r.IntN(24); {
		case kind < 9:
			*j = job{Txn: e.enter(key), holds: true}
		case kind < 16:
			e.srv.Put(key, "of somebody")
			*j = job{Txn: leave(key), holds: true}
		case kind < 17:
			e.srv.Put(key, "of somebody")
			*j = job{Txn: e.enter(key)}
		case kind < 18:
			*j = job{Txn: leave(key)}
		case kind < 19:
			*j = job{Txn: e.enter(key), fault: rpctypes.ErrRequestTooLarge}
			j.Then[0] = etcd.Put(key, strings.Repeat("v", 3<<19), 0) // the client refuses no less than 2 MiB
		case kind < 20:
			*j = job{Txn: e.enter(key), fault: rpctypes.ErrDuplicateKey}
			j.Then = append(j.Then, etcd.Delete(key))
		case kind < 21:
			key = "bad" + key
			*j = job{Txn: []etcd.Txn{e.enter(key), leave(key)}[r.IntN(2)], fault: rpctypes.ErrPermissionDenied}
		default: // such as a leader's new value
			*j = job{Txn: e.enter(key), holds: true}
			j.Queue = ""
		}
		list[i].key = key
	}
	return list
}

// done reports whether a transaction whose comparisons held was carried out, once.
func (e *env) done(j job) bool {
	kvs := e.srv.Keys(j.key)
	if j.Else == nil { // it deletes
		return len(kvs) == 0
	}
	return len(kvs) == 1 && kvs[0].Version == 1 && string(kvs[0].Value) == "of "+j.key
}

// requireResult checks that a transaction got the result that it would have got alone.
func (e *env) requireResult(t *testing.T, j job, res etcd.Result) {
	t.Helper()
	require.Equal(t, j.holds, res.Succeeded)
	require.Len(t, res.Responses, map[bool]int{true: len(j.Then), false: len(j.Else)}[j.holds])
	switch {
	case j.Else == nil && j.holds:
		require.EqualValues(t, 1, res.Responses[0].GetResponseDeleteRange().Deleted)
	case j.holds:
		newest := res.Responses[1].GetResponseRange().Kvs[0]
		require.Equal(t, []any{j.key, res.Revision}, []any{string(newest.Key), newest.CreateRevision})
	case j.Else != nil:
		require.Equal(t, "of somebody", string(res.Responses[0].GetResponseRange().Kvs[0].Value))
	}
}

// Callers share requests, some of which etcd refuses, or whose answer is lost. Each caller gets the result of its own
// transaction. A refusal reaches those alone that are at fault, and says that they were not carried out. After a lost
// message the outcome is unknown, and nothing is sent again. Leaving works when entering is impossible.
func TestLine_random(t *testing.T) {
	for seed := range uint64(150) {
		bubbleOf(t, fmt.Sprint(seed), func(t *testing.T, e *env) {
			r := rand.New(rand.NewPCG(seed, 0))
			e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Err: rpctypes.ErrGRPCPermissionDenied, Match: request(func(r *pb.TxnRequest) bool {
				return strings.Contains(strings.Join(written(r), " "), "bad")
			})})
			list := e.jobs(r, 1+r.IntN(40))
			var txns []etcd.Txn
			for _, j := range list {
				txns = append(txns, j.Txn)
			}
			lost, limited, full := false, false, error(nil) // full is why nothing can enter
			free := e.occupy(t)
			switch r.IntN(6) {
			case 0:
				full = rpctypes.ErrLeaseNotFound
				require.NoError(t, e.srv.Revoke(e.lease))
			case 1:
				full = rpctypes.ErrNoSpace
				e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Match: request(puts), Err: rpctypes.ErrGRPCNoSpace})
			case 2, 3:
				lost = true
				e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{
					Times: 1, Match: writes(list[0].key), Lose: []fakeetcd.Message{fakeetcd.Request, fakeetcd.Answer}[r.IntN(2)],
					Err: []error{nil, fakeetcd.ErrUnavailable}[r.IntN(2)], After: []time.Duration{0, time.Second, time.Minute}[r.IntN(3)],
				})
			case 4:
				limited = true
				limitOps(e, 3+r.IntN(20))
			}
			sent := e.record()
			all := e.sendAll(t.Context(), txns)
			free()
			unknown, faults := 0, 0
			noSpace := full == rpctypes.ErrNoSpace //nolint:errorlint // the same value
			for i, o := range receiveAll(t, all) {
				j := list[i]
				require.LessOrEqual(t, o.at, bound)
				if j.fault != nil {
					faults++
				}
				switch refused := etcd.Refused(o.err); {
				case o.err == nil:
					e.requireResult(t, j, o.res)
					require.True(t, e.done(j) || !j.holds)
				case lost && !refused:
					unknown++
				case j.fault != nil:
					require.True(t, errors.Is(o.err, j.fault) || full != nil && errors.Is(o.err, full), "%v", o.err)
					require.True(t, refused || noSpace)
					require.False(t, e.done(j) && j.Else != nil)
				case noSpace: // the server may have carried it out
					require.True(t, j.Else != nil && errors.Is(o.err, full) || !j.holds, "%v", o.err)
					require.False(t, refused)
				default:
					require.NotEmpty(t, j.Else, "it only leaves")
					require.ErrorIs(t, o.err, full)
					require.True(t, refused)
					require.False(t, j.holds && e.done(j))
				}
			}
			require.Equal(t, lost, unknown > 0)
			if !limited {
				require.LessOrEqual(t, len(sent()), 4+12*faults, "flat, nested, those that leave, those that enter")
			}
			time.Sleep(time.Minute)
			require.NoError(t, receive(t, e.send(t.Context(), leave("later"))).err)
		})
	}
}
