package etcd

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// mostOps keeps a request within the server's default limit of 128 operations. etcd subtracts the operations of the
// outer transaction from the limit of the nested ones, and the largest of these has 3. It also keeps a request within
// the default of 1.5 MiB, but for names and values that are nearly all of the greatest length.
const mostOps = 120

// notFlatFor is the number of batches that are sent nested from the start, after a flat batch whose comparisons
// failed. Without it a session that often loses a comparison would send most batches twice.
const notFlatFor = 16

// Txn is one caller's transaction. It must not contain nested transactions, but see [Line.CommitAlone].
type Txn struct {
	// Queue is the prefix of the queue into which the transaction may put a contender, or whose order it depends on;
	// "" if it does neither. Two transactions of one queue never share a commit: the create revisions of their keys
	// would tie, and etcd evaluates all comparisons of a commit before it carries out any operation.
	Queue string

	If         []clientv3.Cmp
	Then, Else []*pb.RequestOp // made by Put, Delete, Get, Range or Nested
}

// Result of a transaction.
type Result struct {
	Succeeded bool             // the comparisons held
	Revision  int64            // of the store after the transaction; that of its writes, if there were any
	Responses []*pb.ResponseOp // to Then or Else
}

// LineOptions of a [Line].
type LineOptions struct {
	Bound time.Duration // the least time limit of a request that carries the transactions of waiting callers
	// Spawn runs a function in a goroutine whose context ends with the owner of the line. It reports false if the owner
	// has already ended.
	Spawn func(func(context.Context)) bool
	// Highest, if set, returns the highest revision that is known. The line calls it before each request, and passes
	// the result and the revision of the answer to Saw, before any caller gets the answer.
	Highest func() int64
	Saw     func(before, rev int64)
}

// Line carries the transactions of one lease to etcd. Concurrent transactions share commits: the line sends them as
// one transaction, which costs the server one log entry, one sync to disk and one message instead of many. The batch
// is first sent flat, with the comparisons of all of them together. If these do not all hold, the line sends the
// batch again with each transaction nested, so that each one succeeds or fails by itself.
//
// Apart from transactions that must be sent alone, the line has one request under way at a time; up to four while the
// waiting transactions fill a request. A transaction that finds no request under way is sent at once and alone, so
// batching adds no latency to it. The others wait, and everything that has gathered when a request returns is sent
// together. A request that is not answered within 10 ms no longer holds up the others: the next one is sent beside it.
//
// Callers do not affect each other. Each has its own comparisons and its own result. A caller that gives up while it
// waits gets [ErrNotSent]: its transaction was not sent. A caller that gives up later does not disturb the request,
// which goes on for the others. If the server refuses a batch, the line sends its transactions again in smaller
// parts, down to single ones, so that only the transaction that is at fault fails. If the answer is lost, every
// caller of the batch gets that error, and has to find out whether its own transaction was carried out.
//
// The line starts with the default limits of the server. If the server's are lower (operations in a transaction, bytes
// in a request), the line learns that from the first refusal.
//
// A Line is safe for concurrent use. It needs no closing: without callers it does nothing.
type Line struct {
	conn *Conn
	opts LineOptions

	mu      sync.Mutex  // guards the fields below
	busy    int         // lanes in use by requests of this round
	round   int         // the number of times that requests were stuck; see enter
	sent    time.Time   // when the latest request was sent
	stuck   *time.Timer // runs while transactions wait for a lane
	waiting []*caller   // in the order in which they came
	mostOps int
	notFlat int // the number of further batches that are sent nested

	// refused are the queues whose last transaction the server refused for what it contained. Transactions of these
	// queues are sent alone until one succeeds: a caller without permission that keeps trying would otherwise have
	// each batch that it is in refused and split.
	refused map[string]int // how often in a row
}

const (
	mostRefused = 1024 // the most queues that refused remembers
	refusedFree = 8    // refusals in a row without a pause: a short denial costs no waiting
)

// caller is a transaction that waits to be sent in a batch, by the goroutine of a lane.
type caller struct {
	txn   Txn
	bound time.Duration // the time limit of the request that carries it
	many  int           // the number of copies of that request
	again bool          // an earlier request with an unknown outcome carried it too
	done  chan struct{} // closed when res and err are set

	res Result
	err error
}

// NewLine returns a line that sends through conn.
func NewLine(conn *Conn, opts LineOptions) *Line {
	l := &Line{conn: conn, opts: opts, mostOps: mostOps}
	l.stuck = time.AfterFunc(time.Hour, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.openNext()
	})
	l.stuck.Stop()
	return l
}

// Commit carries out t in one attempt. After an error for which [Refused] reports true, t was not carried out; after
// any other error it may have been, or may still be. Whether t may then be repeated depends on what it does.
func (l *Line) Commit(a *Attempt, t Txn) (Result, error) {
	l.mu.Lock()
	if n := l.refused[t.Queue]; n > 0 {
		l.mu.Unlock()
		return l.apart(a, t, n)
	}
	if len(l.waiting) == 0 {
		if round, free := l.enter(); free {
			l.mu.Unlock()
			defer l.next(round)
			return l.CommitAlone(a, t)
		}
	}
	c := &caller{txn: t, bound: max(a.bound, l.opts.Bound), many: a.copies, done: make(chan struct{})}
	l.waiting = append(l.waiting, c)
	switch {
	case len(l.waiting) == 1:
		l.await()
	case len(l.waiting) >= l.mostOps && l.busy < mostLanes:
		l.openNext()
	}
	l.mu.Unlock()

	select {
	case <-c.done:
		return c.res, c.err
	case <-a.caller.Done():
	case <-a.life.Done():
	}
	if l.withdraw(c) {
		return Result{}, fmt.Errorf("%w: %w", ErrNotSent, a.over())
	}
	select {
	case <-c.done: // an answer that has already come counts
		return c.res, c.err
	default:
		return Result{}, a.over()
	}
}

// over is the error of an attempt that ended with its caller or with its life. It is not the cause, which may look like a
// server's refusal: the first error of an errgroup, for example.
func (a *Attempt) over() error {
	if err := a.caller.Err(); err != nil {
		return err
	}
	return context.Canceled
}

// CommitAlone is [Line.Commit] in a request that carries nothing else. t may contain nested transactions.
func (l *Line) CommitAlone(a *Attempt, t Txn) (Result, error) {
	resp, err := l.request(a, t.request())
	l.note(t.Queue, err)
	if err != nil {
		return Result{}, err
	}
	return Result{Succeeded: resp.Succeeded, Revision: resp.Header.Revision, Responses: resp.Responses}, nil
}

// apart sends t in a request of its own and, after many refusals in a row, after a pause: etcd commits a refused
// transaction like any other, so a caller that repeats one without end would slow the others.
func (l *Line) apart(a *Attempt, t Txn, refusals int) (Result, error) {
	if refusals > refusedFree {
		pause := time.NewTimer(stuckAfter)
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-a.Context().Done():
			return Result{}, fmt.Errorf("%w: %w", ErrNotSent, a.Context().Err())
		}
	}
	return l.CommitAlone(a, t)
}

// note records whether the server refused a transaction of a queue, sent alone, for what it contained.
func (l *Line) note(queue string, err error) {
	if queue == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch code := Code(err); {
	case err == nil:
		delete(l.refused, queue)
	case code == codes.PermissionDenied, code == codes.InvalidArgument:
		if l.refused == nil || len(l.refused) >= mostRefused {
			l.refused = make(map[string]int)
		}
		l.refused[queue]++
	}
}

func (l *Line) request(a *Attempt, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	if l.opts.Saw == nil {
		return a.transact(r)
	}
	before := l.opts.Highest()
	resp, err := a.transact(r)
	if err == nil {
		l.opts.Saw(before, resp.Header.Revision)
	}
	return resp, err
}

// withdraw takes c out of the line. It reports false if c was sent or is about to be.
func (l *Line) withdraw(c *caller) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.waiting, c)
	if i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	return i >= 0
}

// finish gives c its result. If c was carried before by a request whose outcome is unknown, a refusal or failed
// comparisons now do not show that it was not carried out then: the error leaves that open, and the caller has to
// find out.
func (c *caller) finish(res Result, err error) {
	switch {
	case !c.again:
	case err != nil:
		err = Repeated(err)
	case !res.Succeeded:
		err = errAgain
	}
	c.res, c.err = res, err
	close(c.done)
}

// patientAs reports whether c and d may share a request: their time limits are within a factor of two, and both send
// copies or neither does. A repeated attempt with a long limit must not hold up first attempts. Copies must not carry
// a caller that did not ask for them: the second copy finds its transaction done by the first one, which that caller
// takes for a failure.
func (c *caller) patientAs(d *caller) bool {
	return c.bound <= 2*d.bound && d.bound <= 2*c.bound && (c.many > 1) == (d.many > 1)
}

var errAgain = status.Error(codes.Unavailable, "etcd: the request was sent twice, and the first may have been carried out")
