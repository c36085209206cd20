package etcd

import (
	"context"
	"fmt"
	"runtime"
	"time"
)

const (
	// lanes is the number of requests under way at a time. More lanes do not lower latency; with one, transactions
	// that finish together are batched together again.
	lanes = 1
	// mostLanes is that number while the waiting transactions fill a request: then waiting for more of them gains
	// nothing.
	mostLanes = 4
	// stuckAfter is how long a request keeps its lane. After that another request may be sent beside it: an endpoint
	// that does not answer must not hold up callers whom another endpoint could serve.
	stuckAfter = 10 * time.Millisecond
	// yields is how often in a row gather yields the processor without a new transaction before it sends, which takes
	// about 50 µs on an idle processor. If other goroutines compute, each yield may take 10 ms: then gather ends
	// after gatherFor. 64 goroutines take about 250 µs until all of them have sent their next transaction.
	yields    = 256
	gatherFor = 300 * time.Microsecond
)

// lane is a slot for one request at a time. The line's mu guards over.
type lane struct {
	stuck *time.Timer // takes the lane from a request that is stuck
	over  bool        // the present user does not have the lane any more
}

// free takes a lane and starts its timer. It returns nil if none is free. l.mu must be held.
func (l *Line) free() *lane {
	most := lanes
	if len(l.waiting) >= l.mostOps {
		most = mostLanes
	}
	if l.busy >= most {
		return nil
	}
	l.busy++
	if taken := l.spare; taken != nil {
		l.spare, taken.over = nil, false
		taken.stuck.Reset(stuckAfter)
		return taken
	}
	taken := new(lane)
	taken.stuck = time.AfterFunc(stuckAfter, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.leave(taken)
		l.openNext()
	})
	return taken
}

// next passes a lane whose request has returned on to the waiting transactions.
func (l *Line) next(lane *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done(lane)
	l.openNext()
}

// openNext starts sending the waiting transactions, if there are any and a lane is free. l.mu must be held.
func (l *Line) openNext() {
	if len(l.waiting) == 0 {
		return
	}
	if free := l.free(); free != nil {
		l.open(free)
	}
}

// done frees a lane whose user has ended, and keeps it for the next user unless its timer has fired. A timer that
// fired for an earlier request, and still waits for l.mu, may treat the next request as stuck: then another one is
// sent beside it, which is harmless. l.mu must be held.
func (l *Line) done(lane *lane) {
	if lane.stuck.Stop() {
		l.spare = lane
	}
	l.leave(lane)
}

// leave frees a lane, whose request may still be under way. l.mu must be held.
func (l *Line) leave(lane *lane) {
	if !lane.over {
		lane.over = true
		l.busy--
	}
}

// open starts a goroutine that sends the waiting transactions on a lane. l.mu must be held.
func (l *Line) open(lane *lane) {
	if l.opts.Spawn(func(ctx context.Context) { l.drive(ctx, lane) }) {
		return
	}
	l.end(lane)
}

// end fails all waiting transactions, because the owner of the line has ended. l.mu must be held.
func (l *Line) end(lane *lane) {
	for _, c := range l.waiting {
		c.finish(Result{}, fmt.Errorf("%w: %w", ErrNotSent, context.Canceled))
	}
	l.waiting = nil
	l.done(lane)
}

// drive sends one batch after another on its lane until nothing waits.
func (l *Line) drive(ctx context.Context, lane *lane) {
	for back := 0; ; {
		l.gather(back)
		batch := l.take(ctx, lane)
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
func (l *Line) take(ctx context.Context, lane *lane) []*caller {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case lane.over: // its last request was stuck
		return nil
	case ctx.Err() != nil:
		l.end(lane)
		return nil
	case len(l.waiting) == 0, l.busy > lanes && len(l.waiting) < l.mostOps/2:
		l.done(lane)
		return nil
	}
	lane.stuck.Reset(stuckAfter)
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
