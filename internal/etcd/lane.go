package etcd

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
)

const (
	// lanes is the number of requests under way at a time. More lanes do not lower latency; with one, transactions
	// that finish together are batched together again.
	lanes = 1
	// mostLanes is that number while the waiting transactions fill a request: then waiting for more of them gains
	// nothing.
	mostLanes = 4
	// stuckAfter is how long requests keep the lanes to themselves. After that another may be sent beside them: an
	// endpoint that does not answer must not hold up callers whom another endpoint could serve.
	stuckAfter = 10 * time.Millisecond
	// yields is how often in a row gather yields the processor without a new transaction before it sends, which takes
	// about 50 µs on an idle processor. If other goroutines compute, each yield may take 10 ms: then gather ends
	// after gatherFor. 64 goroutines take about 250 µs until all of them have sent their next transaction.
	yields    = 256
	gatherFor = 300 * time.Microsecond
)

// enter takes a lane for a request that is about to be sent. If all lanes have been in use for stuckAfter, their
// requests are stuck: they lose their lanes, and a new round begins. enter reports false if no lane is free. l.mu must
// be held.
func (l *Line) enter() (round int, free bool) {
	most := lanes
	if len(l.waiting) >= l.mostOps {
		most = mostLanes
	}
	if l.busy >= most {
		if time.Since(l.sent) < stuckAfter {
			return 0, false
		}
		l.busy, l.round = 0, l.round+1
	}
	l.busy++
	l.sent = time.Now()
	return l.round, true
}

// leave frees the lane of a request, unless the request was stuck. l.mu must be held.
func (l *Line) leave(round int) {
	if round == l.round {
		l.busy--
	}
}

// next passes the lane of a request that has returned on to the waiting transactions.
func (l *Line) next(round int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leave(round)
	l.openNext()
}

// openNext starts sending the waiting transactions, if there are any and a lane is free. l.mu must be held.
func (l *Line) openNext() {
	if len(l.waiting) == 0 {
		return
	}
	if round, free := l.enter(); free && !l.opts.Spawn(func(ctx context.Context) { l.drive(ctx, round) }) {
		l.end(round)
	}
}

// await has openNext called when the requests under way are stuck. The first transaction that waits needs that, and
// what a lane leaves behind: a timer set for each of 1,000 that wait would cost 7 % of their pairs. l.mu must be held.
func (l *Line) await() { l.stuck.Reset(stuckAfter - time.Since(l.sent)) }

// end fails all waiting transactions, because the owner of the line has ended. l.mu must be held.
func (l *Line) end(round int) {
	for _, c := range l.waiting {
		c.finish(Result{}, fmt.Errorf("%w: %w", ErrNotSent, context.Canceled))
	}
	l.waiting = nil
	l.leave(round)
}

// drive sends one batch after another on its lane until nothing waits.
func (l *Line) drive(ctx context.Context, round int) {
	for back := 0; ; {
		l.gather(back)
		batch := l.take(ctx, round)
		if len(batch) == 0 {
			return
		}
		l.carry(ctx, batch)
		back = len(batch)
	}
}

// gather waits a moment for more transactions to join the next batch: back callers have just got their results, and
// may be about to send their next transaction. It waits on while they keep coming, see yields. One request for all of
// them takes hardly longer than one for a few. It returns how often it has yielded, for the tests.
func (l *Line) gather(back int) (n int) {
	l.mu.Lock()
	here := len(l.waiting)
	l.mu.Unlock()
	all, began := here+back, time.Now()
	for idle := 0; idle < yields; n++ {
		runtime.Gosched()
		l.mu.Lock()
		now := len(l.waiting)
		l.mu.Unlock()
		if now >= all || time.Since(began) > gatherFor {
			break
		}
		if idle++; now > here {
			here, idle = now, 0
		}
	}
	return n
}

// take takes the next batch off the line. If there is none, the lane is free.
func (l *Line) take(ctx context.Context, round int) []*caller {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case round != l.round: // its last request was stuck
		return nil
	case ctx.Err() != nil:
		l.end(round)
		return nil
	case l.busy > lanes && len(l.waiting) < l.mostOps/2: // they are left to the other lanes, which may be stuck
		l.leave(round)
		l.await()
		return nil
	case len(l.waiting) == 0:
		l.leave(round)
		return nil
	}
	l.sent = time.Now()
	var batch, rest []*caller
	queues := make(map[string]bool)
	for i, c := range l.waiting {
		if len(batch) >= l.mostOps {
			rest = append(rest, l.waiting[i:]...)
			break
		}
		if c.txn.Queue != "" && queues[c.txn.Queue] || len(batch) > 0 && !batch[0].patientAs(c) {
			rest = append(rest, c)
			continue
		}
		queues[c.txn.Queue] = true
		batch = append(batch, c)
	}
	if l.waiting = rest; len(rest) > 0 {
		l.await()
	}
	return batch
}

// carry sends a batch in one request, or in several if the server refuses it, and gives each caller its result.
func (l *Line) carry(ctx context.Context, batch []*caller) {
	results, err := l.send(ctx, batch)
	if err == nil {
		for i, c := range batch {
			c.finish(results[i], nil)
		}
		return
	}
	for _, part := range l.split(batch, err) {
		for _, c := range part {
			c.again = c.again || !Refused(err)
		}
		if len(part) == len(batch) {
			for _, c := range part {
				c.finish(Result{}, err)
			}
			continue
		}
		l.carry(ctx, part)
	}
}

func (l *Line) send(ctx context.Context, batch []*caller) ([]Result, error) {
	bound, many := batch[0].bound, batch[0].many
	for _, c := range batch {
		bound, many = max(bound, c.bound), max(many, c.many)
	}
	a := &Attempt{conn: l.conn, caller: ctx, life: ctx, bound: bound, copies: many}
	defer a.close()
	if len(batch) == 1 {
		res, err := l.CommitAlone(a, batch[0].txn)
		return []Result{res}, err
	}
	cmps, ops := 0, 0
	for _, c := range batch {
		cmps += len(c.txn.If)
		ops += len(c.txn.Then)
	}
	if many == 1 && l.mayBeFlat(max(cmps, ops)) { // of flat copies only the first one finds that its comparisons hold
		results, err := l.flat(a, batch, cmps, ops)
		if results != nil || err != nil {
			return results, err
		}
	}
	return l.nested(a, batch)
}

// flat sends a batch as one transaction with the comparisons of all. If they hold, as they nearly always do, the
// effect is that of nested transactions, for two thirds of the work. If one does not, nothing is carried out, and the
// results are nil.
func (l *Line) flat(a *Attempt, batch []*caller, cmps, ops int) ([]Result, error) {
	all := &pb.TxnRequest{Compare: make([]*pb.Compare, 0, cmps), Success: make([]*pb.RequestOp, 0, ops)}
	for _, c := range batch {
		all.Compare = compares(all.Compare, c.txn.If)
		all.Success = append(all.Success, c.txn.Then...)
	}
	resp, err := l.request(a, all)
	if err != nil {
		return nil, err
	}
	if !resp.Succeeded {
		l.mu.Lock()
		l.notFlat = notFlatFor
		l.mu.Unlock()
		return nil, nil
	}
	results := make([]Result, len(batch))
	rest := resp.Responses
	for i, c := range batch {
		n := len(c.txn.Then)
		results[i] = Result{Succeeded: true, Revision: resp.Header.Revision, Responses: rest[:n:n]}
		rest = rest[n:]
	}
	return results, nil
}

// mayBeFlat reports whether a batch of so many operations may be sent flat: it is small enough, and the comparisons
// of no recent flat batch failed.
func (l *Line) mayBeFlat(ops int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.notFlat > 0 {
		l.notFlat--
		return false
	}
	return ops <= l.mostOps
}

// nested sends a batch as one transaction in which each caller's transaction is nested.
func (l *Line) nested(a *Attempt, batch []*caller) ([]Result, error) {
	ops := make([]*pb.RequestOp, len(batch))
	for i, c := range batch {
		ops[i] = Nested(c.txn)
	}
	resp, err := l.request(a, &pb.TxnRequest{Success: ops})
	if err != nil {
		return nil, err
	}
	results := make([]Result, len(batch))
	for i := range batch {
		nested := resp.Responses[i].GetResponseTxn()
		results[i] = Result{
			Succeeded: nested.Succeeded,
			Revision:  resp.Header.Revision, // all writes of one transaction have one revision
			Responses: nested.Responses,
		}
	}
	return results, nil
}

// split divides a batch that failed with err into parts that are sent again separately. It does so only after a
// refusal or an error that is [TooMuch], and if parts may succeed. A part that is the whole batch is not sent again:
// the error counts for it.
func (l *Line) split(batch []*caller, err error) [][]*caller {
	whole := [][]*caller{batch}
	if len(batch) == 1 || !Refused(err) && !TooMuch(err) || errors.Is(err, rpctypes.ErrTooManyRequests) {
		return whole
	}
	l.mu.Lock()
	if tooLarge(err) {
		l.mostOps = min(l.mostOps, len(batch)/2)
	}
	most := l.mostOps
	l.mu.Unlock()
	// Deletions succeed though the lease is gone or the disk is full, so they must not fail with the puts.
	var puts, others []*caller
	for _, c := range batch {
		if slices.ContainsFunc(c.txn.Then, func(op *pb.RequestOp) bool { return op.GetRequestPut() != nil }) {
			puts = append(puts, c)
		} else {
			others = append(others, c)
		}
	}
	if len(puts) > 0 && len(others) > 0 {
		return [][]*caller{others, puts}
	}
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace):
	case Code(err) == codes.InvalidArgument, Code(err) == codes.PermissionDenied,
		Code(err) == codes.ResourceExhausted: // perhaps only some of them are too large or not permitted
		return slices.Collect(slices.Chunk(batch, min((len(batch)+1)/2, most)))
	}
	return whole
}

// PartSize is the most operations of the transaction of one part. It is below the server's default limit of 128.
const PartSize = 100

// InParts calls send with one part of list after another, of at most most elements each. If the server's limit is
// lower, it goes on with smaller parts. A part for which permission is denied is halved until single elements fail,
// so that one forbidden key does not keep the others from being sent. InParts gives up at the refusals-th denial or
// at any other error. It returns the elements that were not sent with success, and the last error.
func InParts[T any](list []T, most, refusals int, send func([]T) error) (failed []T, why error) {
	for n := most; len(list) > 0; {
		part := list[:min(n, most, len(list))]
		err := send(part)
		if err == nil {
			list, n = list[len(part):], 2*len(part)
			continue
		}
		if len(part) > 1 && tooLarge(err) {
			most = len(part) / 2
			continue
		}
		why = err
		if refusals--; refusals <= 0 || Code(err) != codes.PermissionDenied {
			return append(failed, list...), why
		}
		if n = len(part) / 2; n == 0 {
			failed, list, n = append(failed, part...), list[1:], 1
		}
	}
	return failed, why
}

// tooLarge reports whether err says that a smaller request would be accepted.
func tooLarge(err error) bool {
	return errors.Is(err, rpctypes.ErrTooManyOps) || errors.Is(err, rpctypes.ErrRequestTooLarge) ||
		strings.Contains(err.Error(), "message larger than max") // gRPC's words
}
