package etcd

import (
	"context"
	"fmt"
	"runtime"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// lanes is how many requests are under way at a time. More lanes do not lower latency; with one, transactions that finish
	// together are batched together again.
	lanes = 1
	// mostLanes is how many there are while those that wait fill a request.
	mostLanes = 4
	// stuckAfter is how long a request has a lane to itself. After that another may go beside it: an endpoint that
	// does not answer must not hold up those who could be served by another.
	stuckAfter = 10 * time.Millisecond
	// yields is how often the processor is given up in vain before a request is sent, which takes some 50 µs if nobody wants it. Where
	// others do, as in a process that computes, each may take 10 ms: then it ends after gatherFor. 64 goroutines take some 250 µs until
	// all have come back.
	yields    = 256
	gatherFor = 300 * time.Microsecond
)

// lane is one request after the other. The line's mu guards over.
type lane struct {
	stuck *time.Timer // gives up the present request
	over  bool        // the lane is another's, or nobody's

	cmps []clientv3.Cmp // room for those of a request, used again
	ops  []clientv3.Op
}

// free takes a lane, nil if none is free. l.mu must be held.
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

// next gives a lane whose request has come back to those who wait.
func (l *Line) next(lane *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done(lane)
	l.openNext()
}

// openNext has those who wait carried, if a lane is free. l.mu must be held.
func (l *Line) openNext() {
	if len(l.waiting) == 0 {
		return
	}
	if free := l.free(); free != nil {
		l.open(free)
	}
}

// done frees a lane whose user has ended, and keeps it for the next one. A timer that has gone off before, and waits for l.mu, may take
// the next user's request for a stuck one: then another goes beside it, which does no harm. l.mu must be held.
func (l *Line) done(lane *lane) {
	if lane.stuck.Stop() {
		l.spare = lane
	}
	l.leave(lane)
}

// leave frees a lane. Its request may be under way. l.mu must be held.
func (l *Line) leave(lane *lane) {
	if !lane.over {
		lane.over = true
		l.busy--
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
		c.finish(Result{}, fmt.Errorf("%w: %w", ErrNotSent, context.Canceled))
	}
	l.waiting = nil
	l.done(lane)
}

// drive sends what waits on its lane, until nothing does.
func (l *Line) drive(ctx context.Context, lane *lane) {
	for back := 0; ; {
		l.gather(back)
		batch := l.take(ctx, lane)
		if len(batch) == 0 {
			return
		}
		l.carry(ctx, lane, batch)
		back = len(batch)
	}
}

// gather waits a moment for those whose transactions have just come back, so many, since they may be about to send their next, and on
// for as long as they keep coming. One request for them and those who wait takes hardly longer than one for either. It returns how
// often it has yielded.
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
	case lane.over: // it was stuck
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
