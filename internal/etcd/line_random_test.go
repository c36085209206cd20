package etcd_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

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
