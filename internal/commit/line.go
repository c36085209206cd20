package commit

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/retry"
)

const (
	// lanes is how many requests are under way at a time. With one, whoever just misses a request waits for two.
	lanes = 2
	// mostOps and mostBytes of a request keep within the server's defaults: 128 operations, of which the largest
	// nested transaction takes 3, and 1.5 MiB.
	mostOps   = 120
	mostBytes = 1 << 20
	// stuckAfter is how long a request has a lane to itself. After that another may go beside it: an endpoint that
	// does not answer must not hold up those who could be served by another.
	stuckAfter = 25 * time.Millisecond
)

// Options of a [Line].
type Options struct {
	Separate bool          // transactions do not share commits
	Bound    time.Duration // of a request that carries others' attempts, at least
	// Spawn runs a function in a goroutine whose context ends with the owner of the line. It reports false if it is
	// too late for that.
	Spawn func(func(context.Context)) bool
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
}

// lane is one request after the other.
type lane struct {
	since time.Time // when the present one was sent
	stuck bool      // it does not come back: its place is another's
}

// caller is a transaction that does not travel on its caller's goroutine.
type caller struct {
	txn   Txn
	size  int
	bound time.Duration // of the request in which it travels
	since time.Time
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
	ctx, life, bound := retry.Parts(ctx)
	c := &caller{txn: t, size: t.size(), bound: max(bound, l.opts.Bound), since: time.Now(), done: make(chan struct{})}
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
	resp, err := l.client.Txn(ctx).If(t.If...).Then(t.Then...).Else(t.Else...).Commit()
	if err != nil {
		return Result{}, err
	}
	return Result{Succeeded: resp.Succeeded, Revision: resp.Header.Revision, Responses: resp.Responses}, nil
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

// free takes a lane, nil if none is free. l.mu must be held.
func (l *Line) free() *lane {
	now := time.Now()
	if len(l.busy) >= lanes {
		l.busy = slices.DeleteFunc(l.busy, func(lane *lane) bool {
			lane.stuck = now.Sub(lane.since) >= stuckAfter
			return lane.stuck
		})
	}
	if len(l.busy) >= lanes {
		return nil
	}
	taken := &lane{since: now}
	l.busy = append(l.busy, taken)
	return taken
}

// next gives a lane whose request has come back to those who wait, or frees it.
func (l *Line) next(lane *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case lane.stuck:
	case len(l.waiting) == 0:
		l.leave(lane)
	default:
		l.open(lane)
	}
}

// leave frees a lane. l.mu must be held.
func (l *Line) leave(lane *lane) {
	if i := slices.Index(l.busy, lane); i >= 0 {
		l.busy = slices.Delete(l.busy, i, i+1)
	}
}

// open has those who wait carried on a lane. l.mu must be held.
func (l *Line) open(lane *lane) {
	if l.opts.Spawn(func(ctx context.Context) { l.drive(ctx, lane) }) {
		return
	}
	l.end(lane)
}

// end refuses those who wait: the owner of the line has ended, and they with it. l.mu must be held.
func (l *Line) end(lane *lane) {
	for _, c := range l.waiting {
		c.finish(Result{}, fmt.Errorf("%w: %w", retry.ErrNotSent, context.Canceled))
	}
	l.waiting = nil
	l.leave(lane)
}

// drive sends what waits on its lane, until nothing does.
func (l *Line) drive(ctx context.Context, lane *lane) {
	for {
		// Those whose transactions have just come back may be about to send their next.
		runtime.Gosched()
		batch := l.take(ctx, lane)
		if len(batch) == 0 {
			return
		}
		l.carry(ctx, batch)
	}
}

// take takes the next batch off the line. If there is none, the lane is free.
func (l *Line) take(ctx context.Context, lane *lane) []*caller {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case lane.stuck: // it was given up
		return nil
	case ctx.Err() != nil:
		l.end(lane)
		return nil
	case len(l.waiting) == 0:
		l.leave(lane)
		return nil
	}
	lane.since = time.Now()
	var (
		batch, rest []*caller
		bytes       int
		queues      = make(map[string]bool)
	)
	for i, c := range l.waiting {
		if len(batch) > 0 && (len(batch) >= l.mostOps || bytes+c.size > l.mostBytes) {
			rest = append(rest, l.waiting[i:]...)
			break
		}
		if c.txn.Queue != "" && queues[c.txn.Queue] || len(batch) > 0 && !batch[0].patientAs(c) {
			rest = append(rest, c)
			continue
		}
		queues[c.txn.Queue] = true
		bytes += c.size
		batch = append(batch, c)
	}
	l.waiting = rest
	return batch
}

// watch sees to it that nobody waits for a lane that is stuck. l.mu must be held.
func (l *Line) watch(after time.Duration) {
	if l.watching {
		return
	}
	l.watching = true
	time.AfterFunc(after, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.watching = false
		if len(l.waiting) == 0 {
			return
		}
		after := stuckAfter - time.Since(l.waiting[0].since)
		if after <= 0 {
			after = stuckAfter
			if lane := l.free(); lane != nil {
				l.open(lane)
			}
		}
		l.watch(after)
	})
}

// patientAs reports whether two attempts are bounded much alike: one that has been repeated, and has more time to be
// answered, is not to hold up those that have not.
func (c *caller) patientAs(d *caller) bool {
	return c.bound <= 2*d.bound && d.bound <= 2*c.bound
}

func (c *caller) finish(res Result, err error) {
	c.res, c.err = res, err
	close(c.done)
}
