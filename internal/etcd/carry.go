package etcd

import (
	"context"
	"errors"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
)

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
	most := l.learn(batch, err)
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

// learn lowers the limit that a batch has exceeded. It returns the number of transactions that a batch may have.
func (l *Line) learn(batch []*caller, err error) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if tooLarge(err) {
		l.mostOps = min(l.mostOps, len(batch)/2)
	}
	return l.mostOps
}
