package etcd_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// A refusal reaches only the transactions that are at fault. Two of these share a request here with others that enter
// and leave.
func TestLine_isolation(t *testing.T) {
	large := strings.Repeat("v", 3<<19) // the client refuses no less than 2 MiB
	forbid := func(e *env) {
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Err: rpctypes.ErrGRPCPermissionDenied, Match: request(func(r *pb.TxnRequest) bool {
			return slices.ContainsFunc(written(r), func(key string) bool { return strings.HasPrefix(key, "bad") })
		})})
	}
	for name, tc := range map[string]struct {
		fault func(*env)
		bad   func(e *env, key string) etcd.Txn
		want  error
	}{
		"value too large for any server": {
			func(*env) {},
			func(e *env, key string) etcd.Txn {
				txn := e.enter(key)
				txn.Then[0] = etcd.Put(key, large, 0)
				return txn
			},
			rpctypes.ErrRequestTooLarge,
		},
		"value too large for this server": {
			func(e *env) { limitBytes(e, 100<<10, rpctypes.ErrGRPCRequestTooLarge) },
			func(e *env, key string) etcd.Txn {
				txn := e.enter(key)
				txn.Then[0] = etcd.Put(key, large[:200<<10], 0)
				return txn
			},
			rpctypes.ErrRequestTooLarge,
		},
		"no permission": {
			forbid,
			(*env).enter,
			rpctypes.ErrPermissionDenied,
		},
		"no permission to leave": {
			forbid,
			func(_ *env, key string) etcd.Txn { return leave(key) },
			rpctypes.ErrPermissionDenied,
		},
		"malformed": {
			func(*env) {},
			func(e *env, key string) etcd.Txn {
				txn := e.enter(key)
				txn.Then = append(txn.Then, etcd.Delete(key))
				return txn
			},
			rpctypes.ErrDuplicateKey,
		},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			tc.fault(e)
			txns := slices.Concat(e.enters("a", 7), []etcd.Txn{tc.bad(e, "bad1/x")}, e.plant("a", 12),
				[]etcd.Txn{tc.bad(e, "bad2/x")}, e.enters("b", 10))
			outcomes, reqs := e.together(t, txns)
			var others []outcome
			for i, o := range outcomes {
				if i == 7 || i == 20 {
					require.ErrorIs(t, o.err, tc.want)
					require.True(t, etcd.Refused(o.err))
				} else {
					others = append(others, o)
				}
			}
			requireAllGood(t, others)
			require.Empty(t, e.srv.Keys("bad"))
			require.Less(t, len(reqs), len(txns), "the others share requests")
		})
	}
}

// Leaving works also when entering is impossible, and transactions that leave still share a request.
func TestLine_isolation_leaving(t *testing.T) {
	for name, tc := range map[string]struct {
		fault func(*testing.T, *env)
		want  error
	}{
		"lease gone": {
			func(t *testing.T, e *env) {
				t.Helper()
				require.NoError(t, e.srv.Revoke(e.lease))
			},
			rpctypes.ErrLeaseNotFound,
		},
		"disk full": {
			func(_ *testing.T, e *env) {
				e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Match: request(puts), Err: rpctypes.ErrGRPCNoSpace})
			},
			rpctypes.ErrNoSpace,
		},
	} {
		bubbleOf(t, name, func(t *testing.T, e *env) {
			tc.fault(t, e)
			enters, leaves := e.enters("a", 20), e.plant("b", 20)
			enters[0].Queue = "" // such as a leader's new value
			var txns []etcd.Txn
			for i := range enters {
				txns = append(txns, enters[i], leaves[i])
			}
			outcomes, reqs := e.together(t, txns)
			for i, o := range outcomes {
				if i%2 == 0 {
					require.ErrorIs(t, o.err, tc.want)
					require.Equal(t, name != "disk full", etcd.Refused(o.err), "etcd may have carried it out all the same")
				} else {
					requireAllGood(t, []outcome{o})
					require.Equal(t, outcomes[1].res.Revision, o.res.Revision)
				}
			}
			require.LessOrEqual(t, len(reqs), 3, "all; those that leave; those that enter")
		})
	}
}

// Transactions of a queue that was refused are sent alone, so they no longer make the others' batches fail. Once one
// succeeds, they share requests again.
func TestLine_isolation_refusedBefore(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		permit := e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Match: writes("bad/x"), Err: rpctypes.ErrGRPCPermissionDenied})
		for round := range 4 {
			txns := append(e.enters("a"+strconv.Itoa(round), 20), e.enter("bad/x"))
			outcomes, reqs := e.together(t, txns)
			requireAllGood(t, outcomes[:20])
			switch round {
			case 0:
				require.ErrorIs(t, outcomes[20].err, rpctypes.ErrPermissionDenied)
				require.Greater(t, len(reqs), 2)
			case 1:
				require.ErrorIs(t, outcomes[20].err, rpctypes.ErrPermissionDenied)
				require.Len(t, reqs, 2)
				permit()
			case 2:
				requireAllGood(t, outcomes[20:])
				require.Len(t, reqs, 2)
				_, err := e.Commit(t.Context(), leave("bad/x"))
				require.NoError(t, err)
			default:
				requireAllGood(t, outcomes[20:])
				require.Len(t, reqs, 1)
			}
		}
	})
}

// A caller that repeats a refused transaction without end sends few: etcd commits each like any other.
func TestLine_isolation_refusedInALoop(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{After: time.Millisecond, Err: rpctypes.ErrGRPCPermissionDenied})
		sent := e.record()
		for e.now() < time.Second {
			_, err := e.Commit(t.Context(), e.enter("bad/x"))
			require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
		}
		require.LessOrEqual(t, len(sent()), 120)
	})
}

// etcd refuses to delete and put a key in one transaction. Those that leave go first then.
func TestLine_isolation_sameKey(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		const key = "a-000/planted"
		leaving := e.plant("a", 1)[0]
		outcomes, _ := e.together(t, slices.Concat(e.enters("b", 3), []etcd.Txn{e.enter(key), leaving}, e.enters("c", 3)))
		requireAllGood(t, outcomes)
		require.Equal(t, outcomes[3].res.Revision, e.srv.Keys(key)[0].CreateRevision)
		require.Greater(t, outcomes[3].res.Revision, outcomes[4].res.Revision)
	})
}
