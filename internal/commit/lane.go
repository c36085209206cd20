package commit

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/retry"
)

const (
	// lanes is how many requests are under way at a time. More serve nobody sooner, as long as a request takes little
	// longer for what it carries: with one, those whose transactions come back together go together again.
	lanes = 1
	// mostLanes is how many there are while those that wait fill a request.
	mostLanes = 4
	// stuckAfter is how long a request has a lane to itself. After that another may go beside it: an endpoint that
	// does not answer must not hold up those who could be served by another.
	stuckAfter = 10 * time.Millisecond
)

// lane is one request after the other.
type lane struct {
	since time.Time // when the present one was sent
	stuck bool      // it does not come back: its place is another's

	cmps []clientv3.Cmp // room for those of a request, used again
	ops  []clientv3.Op
}

// free takes a lane, nil if none is free. l.mu must be held.
func (l *Line) free() *lane {
	now, most := time.Now(), lanes
	if len(l.waiting) >= l.mostOps {
		most = mostLanes
	}
	if len(l.busy) >= most {
		l.busy = slices.DeleteFunc(l.busy, func(lane *lane) bool {
			lane.stuck = now.Sub(lane.since) >= stuckAfter
			return lane.stuck
		})
	}
	if len(l.busy) >= most {
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
	if len(l.waiting) == 0 {
		l.leave(lane)
		return
	}
	l.open(lane)
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
		l.carry(ctx, lane, batch)
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
	case len(l.waiting) == 0, len(l.busy) > lanes && len(l.waiting) < l.mostOps/2:
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
