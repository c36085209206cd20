package commit

import (
	"context"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasefence/leasefence/internal/retry"
)

// mostOps and mostBytes of a request keep within the server's defaults: 128 operations, of which the largest nested
// transaction takes 3, and 1.5 MiB.
const (
	mostOps   = 120
	mostBytes = 1 << 20
)

// notFlatFor is how many batches are sent nested at once after a flat one that had to be sent again.
const notFlatFor = 16

// Options of a [Line].
type Options struct {
	Separate bool          // transactions do not share commits
	Bound    time.Duration // of a request that carries others' attempts, at least
	// Spawn runs a function in a goroutine whose context ends with the owner of the line. It reports false if it is
	// too late for that.
	Spawn func(func(context.Context)) bool
	// Highest, if set, is asked before each request for the highest revision that is known, and Saw is told that and
	// the revision of the answer, before anybody else is told of the answer.
	Highest func() int64
	Saw     func(before, rev int64)
}

// Line carries the transactions of one lease. It is safe for concurrent use. It needs no closing: without callers it
// does nothing.
type Line struct {
	client *clientv3.Client
	opts   Options

	mu        sync.Mutex // guards the fields below
	busy      []*lane    // those in use, less those that are stuck
	waiting   []*caller  // in the order in which they came
	watching  bool       // a timer looks after those that wait
	mostOps   int
	mostBytes int
	notFlat   int // so many batches are sent nested
}

// caller is a transaction that does not travel on its caller's goroutine.
type caller struct {
	txn   Txn
	size  int
	bound time.Duration // of the request in which it travels
	many  int           // copies of that
	since time.Time
	again bool          // it is sent again, and may have been carried out before
	done  chan struct{} // closed when res and err are set

	res Result
	err error
}

// NewLine is a line on client.
func NewLine(client *clientv3.Client, opts Options) *Line {
	return &Line{client: client, opts: opts, mostOps: mostOps, mostBytes: mostBytes}
}

// Commit carries out t, in one attempt. Whether it may be repeated after an error is up to what t does; see
// [retry.Refused] for the errors after which it was certainly not carried out.
func (l *Line) Commit(ctx context.Context, t Txn) (Result, error) {
	if l.opts.Separate {
		return l.alone(ctx, t)
	}
	l.mu.Lock()
	if len(l.waiting) == 0 {
		if lane := l.free(); lane != nil {
			l.mu.Unlock()
			defer l.next(lane)
			return l.alone(ctx, t)
		}
	}
	many := retry.Copies(ctx)
	ctx, life, bound := retry.Parts(ctx)
	c := &caller{txn: t, size: t.size(), bound: max(bound, l.opts.Bound), many: many, since: time.Now(), done: make(chan struct{})}
	l.waiting = append(l.waiting, c)
	if lane := l.free(); lane != nil { // one that was stuck
		l.open(lane)
	}
	l.watch(stuckAfter)
	l.mu.Unlock()

	select {
	case <-c.done:
		return c.res, c.err
	case <-ctx.Done():
	case <-life.Done():
	}
	if l.withdraw(c) {
		return Result{}, fmt.Errorf("%w: %w", retry.ErrNotSent, over(ctx))
	}
	select {
	case <-c.done: // an answer that is there counts
		return c.res, c.err
	default:
		return Result{}, over(ctx)
	}
}

// over is the error of an attempt that ended with ctx, or with the life of what it is about.
func over(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return context.Canceled
}

// alone sends t as it is.
func (l *Line) alone(ctx context.Context, t Txn) (Result, error) {
	resp, err := l.request(ctx, t.If, t.Then, t.Else)
	if err != nil {
		return Result{}, err
	}
	return Result{Succeeded: resp.Succeeded, Revision: resp.Header.Revision, Responses: resp.Responses}, nil
}

// request sends a transaction.
func (l *Line) request(ctx context.Context, cmps []clientv3.Cmp, then, or []clientv3.Op) (*clientv3.TxnResponse, error) {
	if l.opts.Saw == nil {
		return retry.Txn(ctx, l.client, cmps, then, or)
	}
	before := l.opts.Highest()
	resp, err := retry.Txn(ctx, l.client, cmps, then, or)
	if err == nil {
		l.opts.Saw(before, resp.Header.Revision)
	}
	return resp, err
}

// withdraw takes c off the line. It reports false if c was sent, or is about to be.
func (l *Line) withdraw(c *caller) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, w := range l.waiting {
		if w == c {
			l.waiting = append(l.waiting[:i], l.waiting[i+1:]...)
			return true
		}
	}
	return false
}

// finish gives c its result. One that was sent again after an error that does not say whether it was carried out, and then
// found that it could not be, may have been carried out before: it is up to the caller to find out.
func (c *caller) finish(res Result, err error) {
	if c.again && err == nil && !res.Succeeded {
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

var errAgain = status.Error(codes.Unavailable, "commit: sent again, and may have been carried out before")
