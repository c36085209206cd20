package etcd

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// mostOps and mostBytes of a request keep within the server's defaults: 128 operations, of which the largest nested
// transaction takes 3, and 1.5 MiB.
const (
	mostOps   = 120
	mostBytes = 1 << 20
)

// notFlatFor is how many batches are sent nested at once after a flat one that had to be sent again.
const notFlatFor = 16

// Txn is one caller's transaction. It must not contain another one.
type Txn struct {
	// Queue is the prefix of the queue into which the transaction may put a contender, or whose order it depends on;
	// "" if it does neither. Two of one queue never share a commit: the create revisions of their keys would tie, and
	// what each compares is compared before the other's operations.
	Queue string

	If         []clientv3.Cmp
	Then, Else []clientv3.Op
}

// Result of a transaction.
type Result struct {
	Succeeded bool                       // the comparisons held
	Revision  int64                      // of the store after it; that of its writes, if there were any
	Responses []*etcdserverpb.ResponseOp // to Then or Else
}

// size is about how many bytes the transaction takes in a request.
func (t Txn) size() int {
	const frame = 32 // of an operation, generously
	n := frame
	for _, c := range t.If {
		n += frame + len(c.KeyBytes()) + len(c.ValueBytes())
	}
	for _, ops := range [...][]clientv3.Op{t.Then, t.Else} {
		for _, op := range ops {
			n += frame + len(op.KeyBytes()) + len(op.RangeBytes()) + len(op.ValueBytes())
		}
	}
	return n
}

// LineOptions of a [Line].
type LineOptions struct {
	Bound time.Duration // of a request that carries others' attempts, at least
	// Spawn runs a function in a goroutine whose context ends with the owner of the line. It reports false if it is
	// too late for that.
	Spawn func(func(context.Context)) bool
	// Highest, if set, is asked before each request for the highest revision that is known, and Saw receives that and
	// the revision of the answer, before any caller has the answer.
	Highest func() int64
	Saw     func(before, rev int64)
}

// Line carries the transactions of one lease to etcd. Those that are under way at the same time share
// commits: they travel as one transaction, which costs the server one entry in its log, one sync to the disk and one
// message instead of many. Its comparisons are all of theirs together, and if these do not all hold it is sent again
// with each of them nested in it, to succeed or not by itself.
//
// Beside those of CommitAlone it has one request under way at a time, and a few while those that wait fill one. A transaction that finds
// none under way goes at once and alone, so that sharing adds nothing to its time. The others wait, and whatever has
// gathered when a request has come back goes together. A request that does not come back holds up nobody for long:
// another goes beside it.
//
// Callers do not notice each other. Each has its own comparisons and its own result. One that gives up while it
// waits was not sent, and says so ([ErrNotSent]); one that gives up later leaves the others where they are.
// If the server refuses a request that carries several, it has carried out none of them, and they are sent again
// in smaller parts, down to single ones, so that the refusal meets only whom it is meant for. If the answer
// is lost, each caller gets that error and finds out for itself what became of its own.
//
// The server's limits (operations in a transaction, bytes in a request) are its defaults at first; where they are
// lower, the line learns it from the first refusal.
//
// A Line is safe for concurrent use. It needs no closing: without callers it does nothing.
type Line struct {
	conn *Conn
	opts LineOptions

	mu        sync.Mutex // guards the fields below
	busy      int        // lanes in use, less those that are stuck
	spare     *lane      // one that was used, nil if there is none
	waiting   []*caller  // in the order in which they came
	mostOps   int
	mostBytes int
	notFlat   int // so many batches are sent nested

	// refused are the queues whose last transaction was refused for what it was. They travel alone until one is not: a
	// caller without permission that goes on trying would have the others' batches refused and split each time.
	refused map[string]struct{}
	inRow   int           // how many of them have been refused in a row
	apart   chan struct{} // of capacity 1: taken by the one of them that is under way
}

const (
	mostRefused  = 1024           // remembered
	refusedPause = stuckAfter / 2 // until the next of them goes
	refusedFree  = 8              // refusals without a pause
)

// caller is a transaction that does not travel on its caller's goroutine.
type caller struct {
	txn   Txn
	size  int
	bound time.Duration // of the request in which it travels
	many  int           // copies of that
	again bool          // it is sent again, and may have been carried out before
	done  chan struct{} // closed when res and err are set

	res Result
	err error
}

// NewLine is a line on a way to etcd.
func NewLine(conn *Conn, opts LineOptions) *Line {
	return &Line{conn: conn, opts: opts, mostOps: mostOps, mostBytes: mostBytes, apart: make(chan struct{}, 1)}
}

// Commit carries out t, in one attempt. Whether it may be repeated after an error is up to what t does; see
// [Refused] for the errors after which it was certainly not carried out.
func (l *Line) Commit(a *Attempt, t Txn) (Result, error) {
	l.mu.Lock()
	if _, refused := l.refused[t.Queue]; refused {
		l.mu.Unlock()
		return l.goApart(a, t)
	}
	if len(l.waiting) == 0 {
		if lane := l.free(); lane != nil {
			l.mu.Unlock()
			defer l.next(lane)
			return l.alone(a, t)
		}
	}
	c := &caller{txn: t, size: t.size(), bound: max(a.bound, l.opts.Bound), many: a.copies, done: make(chan struct{})}
	l.waiting = append(l.waiting, c)
	if lane := l.free(); lane != nil { // they fill a request
		l.open(lane)
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
	case <-c.done: // an answer that is there counts
		return c.res, c.err
	default:
		return Result{}, a.over()
	}
}

// over is the error of an attempt that ended with its caller, or with the life of what it is about.
func (a *Attempt) over() error {
	if err := a.caller.Err(); err != nil {
		return err
	}
	return context.Canceled
}

// CommitAlone carries out t, which may contain others, in a request of its own and in one attempt; see [Line.Commit].
func (l *Line) CommitAlone(a *Attempt, t Txn) (Result, error) { return l.alone(a, t) }

func (l *Line) alone(a *Attempt, t Txn) (Result, error) {
	resp, err := l.request(a, t.If, t.Then, t.Else)
	l.note(t.Queue, err)
	if err != nil {
		return Result{}, err
	}
	return Result{Succeeded: resp.Succeeded, Revision: resp.Header.Revision, Responses: resp.Responses}, nil
}

// goApart sends t by itself, one such after the other and with a pause after a refusal, so that callers which do not stop trying
// take little of what the server can do. One that does not come back holds up nobody for long.
func (l *Line) goApart(a *Attempt, t Txn) (res Result, err error) {
	stuck := time.NewTimer(stuckAfter)
	defer stuck.Stop()
	select {
	case l.apart <- struct{}{}:
		defer func() {
			l.mu.Lock()
			if l.inRow++; err == nil {
				l.inRow = 0
			}
			atOnce := l.inRow <= refusedFree
			l.mu.Unlock()
			if free := func() { <-l.apart }; atOnce {
				free()
			} else {
				time.AfterFunc(refusedPause, free)
			}
		}()
	case <-stuck.C:
	case <-a.Context().Done():
		return Result{}, fmt.Errorf("%w: %w", ErrNotSent, a.Context().Err())
	}
	return l.alone(a, t)
}

// note takes down whether the transaction of a queue was refused, by itself, for what it was.
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
			l.refused = make(map[string]struct{})
		}
		l.refused[queue] = struct{}{}
	}
}

func (l *Line) request(a *Attempt, cmps []clientv3.Cmp, then, or []clientv3.Op) (*clientv3.TxnResponse, error) {
	if l.opts.Saw == nil {
		return a.Txn(cmps, then, or)
	}
	before := l.opts.Highest()
	resp, err := a.Txn(cmps, then, or)
	if err == nil {
		l.opts.Saw(before, resp.Header.Revision)
	}
	return resp, err
}

// withdraw takes c off the line. It reports false if c was sent, or is about to be.
func (l *Line) withdraw(c *caller) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.waiting, c)
	if i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	return i >= 0
}

// finish gives c its result. One that was sent again after an error that does not say whether it was carried out, and then
// could not be or was refused, may have been carried out before: it is up to the caller to find out.
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

// patientAs reports whether two attempts are bounded much alike: one that has been repeated, and has more time to be
// answered, is not to hold up those that have not. Nor is one that sends copies to make others do so, which do not expect it.
func (c *caller) patientAs(d *caller) bool {
	return c.bound <= 2*d.bound && d.bound <= 2*c.bound && (c.many > 1) == (d.many > 1)
}

var errAgain = status.Error(codes.Unavailable, "etcd: sent again, and may have been carried out before")
