package etcd_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// bound is the time limit of shared requests in these tests.
const bound = 2 * time.Second

// env is a line, its owner and its server, in one bubble.
type env struct {
	line *etcd.Line
	conn *etcd.Conn

	srv       *fakeetcd.Server
	c         *fakeetcd.Client
	lease     clientv3.LeaseID
	owner     *owner
	began     time.Time
	occupants int // so far
}

// bubble runs a test in a bubble with a line of its own.
func bubble(t *testing.T, test func(*testing.T, *env)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, startWith(t, etcd.LineOptions{})) })
}

// bubbleOf is bubble for a sub-test.
func bubbleOf(t *testing.T, name string, test func(*testing.T, *env)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { bubble(t, test) })
}

// startWith makes a line whose goroutines must all end by themselves before the test does.
func startWith(t *testing.T, opts etcd.LineOptions) *env {
	t.Helper()
	e := &env{srv: fakeetcd.New(), owner: newOwner(t.Context()), began: time.Now()}
	t.Cleanup(e.srv.Close)
	e.c = e.srv.NewClient(t.Context())
	granted, err := e.c.Grant(t.Context(), 3600)
	require.NoError(t, err)
	e.lease = granted.ID
	opts.Bound, opts.Spawn = bound, e.owner.spawn
	e.conn = etcd.Of(e.c.Client)
	e.line = etcd.NewLine(e.conn, opts)
	t.Cleanup(e.owner.running.Wait) // if this never returns, the bubble fails as deadlocked
	return e
}

// Commit makes one attempt that only ctx bounds.
func (e *env) Commit(ctx context.Context, txn etcd.Txn) (etcd.Result, error) {
	return e.line.Commit(e.conn.Once(ctx), txn)
}

func (e *env) now() time.Duration { return time.Since(e.began) }

// owner stands for the session that owns the line.
type owner struct {
	ctx     context.Context //nolint:containedctx // of its goroutines
	end     context.CancelFunc
	run     func(func(context.Context))
	running sync.WaitGroup
}

func newOwner(ctx context.Context) *owner {
	o := new(owner)
	o.ctx, o.end = context.WithCancel(ctx)
	o.run = func(f func(context.Context)) { f(o.ctx) }
	return o
}

func (o *owner) spawn(f func(context.Context)) bool {
	if o.ctx.Err() != nil {
		return false
	}
	o.running.Go(func() { o.run(f) })
	return true
}

// outcome of one Commit, and when it returned.
type outcome struct {
	res etcd.Result
	err error
	at  time.Duration
}

// send commits txn in the background, and returns when nothing more can happen at this instant.
func (e *env) send(ctx context.Context, txn etcd.Txn) <-chan outcome {
	return e.sendIn(e.conn.Once(ctx), txn)
}

func (e *env) sendIn(a *etcd.Attempt, txn etcd.Txn) <-chan outcome {
	got := make(chan outcome, 1)
	go func() {
		res, err := e.line.Commit(a, txn)
		got <- outcome{res, err, e.now()}
	}()
	synctest.Wait()
	return got
}

// sendAll sends the transactions one after the other.
func (e *env) sendAll(ctx context.Context, txns []etcd.Txn) []<-chan outcome {
	var got []<-chan outcome
	for _, txn := range txns {
		got = append(got, e.send(ctx, txn))
	}
	return got
}

// receiveAll returns the outcomes. The test fails if one does not come within a day.
func receiveAll(t *testing.T, chs []<-chan outcome) []outcome {
	t.Helper()
	late := time.NewTimer(24 * time.Hour)
	defer late.Stop()
	var all []outcome
	for i, ch := range chs {
		select {
		case o := <-ch:
			all = append(all, o)
		case <-late.C:
			require.FailNow(t, "a caller hangs", "number %d of %d", i, len(chs))
		}
	}
	return all
}

func receive(t *testing.T, ch <-chan outcome) outcome {
	t.Helper()
	return receiveAll(t, []<-chan outcome{ch})[0]
}

// requireAllGood returns the results.
func requireAllGood(t *testing.T, all []outcome) []etcd.Result {
	t.Helper()
	var results []etcd.Result
	for i, o := range all {
		require.NoError(t, o.err, "number %d", i)
		require.True(t, o.res.Succeeded, "number %d", i)
		results = append(results, o.res)
	}
	return results
}

// occupy sends a request that is held, so that the next transactions wait. free lets it go on, and returns when nothing
// more can happen at this instant.
func (e *env) occupy(t *testing.T) (free func()) {
	t.Helper()
	e.occupants++
	key := fmt.Sprintf("occupant/%d", e.occupants)
	gate := make(chan struct{})
	e.hold(key, gate)
	sent := e.record()
	e.send(t.Context(), etcd.Txn{Then: []*pb.RequestOp{etcd.Put(key, "", 0)}})
	require.Len(t, sent(), 1)
	return sync.OnceFunc(func() { close(gate); synctest.Wait() })
}

// together commits txns while the lane is busy, so that they share requests as far as the line lets them.
func (e *env) together(t *testing.T, txns []etcd.Txn) ([]outcome, []*pb.TxnRequest) {
	t.Helper()
	free := e.occupy(t)
	sent := e.record()
	all := e.sendAll(t.Context(), txns)
	free()
	outcomes := receiveAll(t, all)
	return outcomes, sent()
}

// hold keeps the next request that writes key from reaching the server until gate is closed.
func (e *env) hold(key string, gate <-chan struct{}) {
	e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Match: writes(key), Until: gate})
}

// requests returns the requests so far.
func (e *env) requests() []*pb.TxnRequest {
	var reqs []*pb.TxnRequest
	for _, call := range e.c.Calls(fakeetcd.Txn) {
		reqs = append(reqs, call.Request.(*pb.TxnRequest))
	}
	return reqs
}

// record returns a function that returns the requests sent from now on.
func (e *env) record() func() []*pb.TxnRequest {
	from := len(e.requests())
	return func() []*pb.TxnRequest { return e.requests()[from:] }
}

// nested returns the transactions that are nested in a request.
func nested(r *pb.TxnRequest) []*pb.TxnRequest {
	var txns []*pb.TxnRequest
	for _, op := range r.Success {
		if n := op.GetRequestTxn(); n != nil {
			txns = append(txns, n)
		}
	}
	return txns
}

// carried is the number of transactions that share a request, nested or flat; each of them has one comparison.
func carried(r *pb.TxnRequest) int { return max(len(nested(r)), len(r.Compare)) }

// leaves returns the operations of a request and of the transactions nested in it, in their order.
func leaves(r *pb.TxnRequest) []*pb.RequestOp {
	var all []*pb.RequestOp
	for _, op := range slices.Concat(r.Success, r.Failure) {
		if n := op.GetRequestTxn(); n != nil {
			all = append(all, leaves(n)...)
		} else {
			all = append(all, op)
		}
	}
	return all
}

// written returns the keys that a request may write, in its order.
func written(r *pb.TxnRequest) []string {
	var keys []string
	for _, op := range leaves(r) {
		switch {
		case op.GetRequestPut() != nil:
			keys = append(keys, string(op.GetRequestPut().Key))
		case op.GetRequestDeleteRange() != nil:
			keys = append(keys, string(op.GetRequestDeleteRange().Key))
		}
	}
	return keys
}

// puts reports whether a request may put anything.
func puts(r *pb.TxnRequest) bool {
	return slices.ContainsFunc(leaves(r), func(op *pb.RequestOp) bool { return op.GetRequestPut() != nil })
}

// request turns a condition on the request into one on the call.
func request(match func(*pb.TxnRequest) bool) func(fakeetcd.Call) bool {
	return func(call fakeetcd.Call) bool {
		r, ok := call.Request.(*pb.TxnRequest)
		return ok && match(r)
	}
}

func writes(key string) func(fakeetcd.Call) bool {
	return request(func(r *pb.TxnRequest) bool { return slices.Contains(written(r), key) })
}

// enter puts a key, which must not exist, into its queue and reads the newest two keys.
func (e *env) enter(key string) etcd.Txn {
	prefix := key[:strings.LastIndex(key, "/")+1]
	return etcd.Txn{
		Queue: prefix,
		If:    []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)},
		Then: []*pb.RequestOp{
			etcd.Put(key, "of "+key, e.lease),
			etcd.Range(&pb.RangeRequest{
				Key: []byte(prefix), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(prefix)), Limit: 2,
				SortTarget: pb.RangeRequest_CREATE, SortOrder: pb.RangeRequest_DESCEND,
			}),
		},
		Else: []*pb.RequestOp{etcd.Get(key)},
	}
}

// enters makes n transactions of enter, each of a queue of its own.
func (e *env) enters(name string, n int) []etcd.Txn {
	var txns []etcd.Txn
	for i := range n {
		txns = append(txns, e.enter(fmt.Sprintf("%s-%03d/x", name, i)))
	}
	return txns
}

// leave deletes a key, which must exist.
func leave(key string) etcd.Txn {
	return etcd.Txn{
		If:   []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), ">", 0)},
		Then: []*pb.RequestOp{etcd.Delete(key)},
	}
}

// plant puts n keys and returns the transactions that delete them.
func (e *env) plant(name string, n int) []etcd.Txn {
	var txns []etcd.Txn
	for i := range n {
		key := fmt.Sprintf("%s-%03d/planted", name, i)
		e.srv.Put(key, "")
		txns = append(txns, leave(key))
	}
	return txns
}

func (e *env) has(key string) bool { return len(e.srv.Keys(key)) > 0 }
