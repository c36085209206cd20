package etcd_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// attempt is one transaction, on a key that no other attempt puts, and its result.
type attempt struct {
	key   string
	leave bool
	res   etcd.Result
	err   error
}

// Many callers on a bad network: each result agrees with the store's history.
func TestLine_random(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testRandom(t, seed) })
		})
	}
}

func testRandom(t *testing.T, seed uint64) {
	t.Helper()
	e := start(t)
	injectRandomly(e, seed)
	var (
		mu       sync.Mutex // guards attempts
		attempts []attempt
		callers  sync.WaitGroup
	)
	for i := range uint64(200) {
		callers.Go(func() {
			mine := enterAndLeave(t.Context(), e, i, rand.New(rand.NewPCG(seed, i)))
			mu.Lock()
			defer mu.Unlock()
			attempts = append(attempts, mine...)
		})
	}
	callers.Wait()
	time.Sleep(time.Minute) // for late requests to arrive
	e.owner.running.Wait()

	most := 0
	for _, req := range e.requests() {
		most = max(most, carried(req))
		require.LessOrEqual(t, carried(req), 120)
		requireNoTies(t, req)
	}
	require.Greater(t, most, 10, "hardly any have shared a request: the test proves nothing")
	requireAgrees(t, attempts, e.history(t))
	for what, fits := range map[string]func(attempt) bool{
		"good":    func(a attempt) bool { return a.err == nil },
		"unknown": func(a attempt) bool { return a.err != nil && !etcd.Refused(a.err) },
		"refused": func(a attempt) bool { return a.err != nil && etcd.Refused(a.err) },
	} {
		require.True(t, slices.ContainsFunc(attempts, fits), "none is %s: the test proves nothing", what)
	}
}

// injectRandomly makes the network and the server bad.
func injectRandomly(e *env, seed uint64) {
	for i, rule := range []struct {
		chance float64
		fault  fakeetcd.Fault
	}{
		{1, fakeetcd.Fault{After: time.Millisecond}},
		{0.1, fakeetcd.Fault{Before: 3 * time.Millisecond}},
		{0.1, fakeetcd.Fault{After: 4 * time.Millisecond}},
		{0.03, fakeetcd.Fault{Before: 60 * time.Millisecond}},
		{0.02, fakeetcd.Fault{Before: 2 * bound, Late: true}},
		{0.02, fakeetcd.Fault{Lose: fakeetcd.Answer}},
		{0.05, fakeetcd.Fault{Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable}},
		{0.03, fakeetcd.Fault{Lose: fakeetcd.Request, Err: fakeetcd.ErrUnavailable}},
		{0.03, fakeetcd.Fault{Err: rpctypes.ErrGRPCRequestTooManyRequests}},
		{0.03, fakeetcd.Fault{Err: rpctypes.ErrGRPCNoSpace}},
	} {
		dice := rand.New(rand.NewPCG(seed, 1000+uint64(i))) // calls of Match do not overlap
		rule.fault.Match = func(fakeetcd.Call) bool { return dice.Float64() < rule.chance }
		e.c.Inject(fakeetcd.Txn, rule.fault)
	}
	limitOps(e, 90-10*int(seed))
	e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{
		Match: request(func(r *pb.TxnRequest) bool {
			return slices.ContainsFunc(written(r), func(key string) bool { return strings.Contains(key, "forbidden") })
		}),
		Err: rpctypes.ErrGRPCPermissionDenied,
	})
}

// enterAndLeave makes the transactions of one caller.
func enterAndLeave(ctx context.Context, e *env, who uint64, dice *rand.Rand) []attempt {
	var all []attempt
	try := func(key string, leaving bool, txn etcd.Txn) bool {
		patience := 2 * bound
		if dice.IntN(5) == 0 {
			patience = time.Duration(dice.IntN(10)) * time.Millisecond // it may end at the instant of an answer
		}
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		res, err := e.Commit(ctx, txn)
		all = append(all, attempt{key, leaving, res, err})
		return err == nil
	}
	for round := range 12 {
		key := fmt.Sprintf("queue-%02d/%03d-%02d", dice.IntN(30), who, round)
		if dice.IntN(100) == 0 {
			key += "-forbidden"
		}
		if try(key, false, e.enter(key)) {
			time.Sleep(time.Duration(dice.IntN(2000)) * time.Microsecond)
			try(key, true, leave(key))
		}
	}
	return all
}

// history has the revisions at which each key was put and deleted.
type history struct{ puts, deletes map[string][]int64 }

func (e *env) history(t *testing.T) history {
	t.Helper()
	h := history{make(map[string][]int64), make(map[string][]int64)}
	last := e.srv.Put("queue-end", "")
	for resp := range e.srv.Client(t.Context()).Watch(t.Context(), "queue-", clientv3.WithPrefix(), clientv3.WithRev(1)) {
		require.NoError(t, resp.Err())
		for _, ev := range resp.Events {
			key := string(ev.Kv.Key)
			switch {
			case ev.Kv.ModRevision == last:
				return h
			case ev.Type == clientv3.EventTypePut:
				h.puts[key] = append(h.puts[key], ev.Kv.ModRevision)
			default:
				h.deletes[key] = append(h.deletes[key], ev.Kv.ModRevision)
			}
		}
	}
	require.FailNow(t, "the watch has ended")
	return h
}

func requireAgrees(t *testing.T, attempts []attempt, h history) {
	t.Helper()
	type place struct {
		queue string
		rev   int64
	}
	taken := make(map[place]string)
	for key, revs := range h.puts {
		require.Len(t, revs, 1, "%s was put again", key)
		at := place{key[:strings.Index(key, "/")], revs[0]}
		require.Empty(t, taken[at], "ties with %s", key)
		taken[at] = key
	}
	entered := make(map[string]int64)
	for _, a := range attempts {
		revs := h.puts[a.key]
		if a.leave {
			revs = h.deletes[a.key]
		}
		switch {
		case a.err != nil && etcd.Refused(a.err):
			require.Empty(t, revs, "%s: %v", a.key, a.err)
		case a.err != nil:
			require.LessOrEqual(t, len(revs), 1, a.key)
		default:
			require.True(t, a.res.Succeeded, "%s, leave: %v: it was carried out before", a.key, a.leave)
			require.Equal(t, []int64{a.res.Revision}, revs, a.key)
		}
		switch {
		case a.err != nil:
		case a.leave:
			require.Greater(t, a.res.Revision, entered[a.key])
			require.EqualValues(t, 1, a.res.Responses[0].GetResponseDeleteRange().Deleted)
		default:
			entered[a.key] = a.res.Revision
			newest := a.res.Responses[1].GetResponseRange().Kvs[0]
			require.Equal(t, a.key, string(newest.Key), "right after it has entered")
			require.Equal(t, a.res.Revision, newest.CreateRevision)
		}
	}
}
