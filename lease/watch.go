package lease

import (
	"context"
	"sync"
	"time"

	"github.com/leasefence/leasefence/internal/queue"
)

// watchAfter is how long a lock is held before its key is watched. Shorter critical sections do not pay for a
// watch; longer ones learn of a revoked lease or a deleted key by it.
const watchAfter = 250 * time.Millisecond

// young is the list of locks that are held and not watched yet. One timer serves them all, and it is left to run
// when a lock goes: a timer per lock would wake the scheduler with each short critical section.
type young struct {
	mu      sync.Mutex // guards the fields below
	since   map[*Lock]time.Time
	ticking bool
}

func (y *young) add(l *Lock) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.since == nil {
		y.since = make(map[*Lock]time.Time)
	}
	y.since[l] = time.Now()
	if !y.ticking {
		y.ticking = true
		time.AfterFunc(watchAfter, y.tick)
	}
}

func (y *young) remove(l *Lock) {
	y.mu.Lock()
	defer y.mu.Unlock()
	delete(y.since, l)
}

// tick starts to watch the locks whose time has come, and comes again for the next.
func (y *young) tick() {
	y.mu.Lock()
	defer y.mu.Unlock()
	next := watchAfter
	for l, since := range y.since {
		if left := watchAfter - time.Since(since); left > 0 {
			next = min(next, left)
			continue
		}
		delete(y.since, l)
		l.g.s.spawn(l.watch)
	}
	if y.ticking = len(y.since) > 0; y.ticking {
		time.AfterFunc(next, y.tick)
	}
}

// watch ends the handle when somebody else deletes or overwrites its key, or revokes the lease.
func (l *Lock) watch(ctx context.Context) {
	end, err := l.g.queue.Guard(l.life, l.entry) //nolint:contextcheck // life ends before the session's ctx
	switch {
	case l.life.Err() != nil:
	case err != nil:
		l.g.log.Warn("the key of a lock cannot be watched", "lock", l.name, "err", err)
	case end == queue.Deleted:
		l.lose(l.whyDeleted(ctx))
	default:
		l.lose(&LostError{Reason: KeyOverwritten, LeaseID: l.g.id, Key: l.entry.Key})
	}
}

// whyDeleted asks whether the key went with its lease; if so every handle on the lease is lost.
func (l *Lock) whyDeleted(ctx context.Context) *LostError {
	// Not for long: the handle has to end now, whether the reason is known or not.
	ctx, cancel := context.WithTimeout(ctx, watchAfter)
	defer cancel()
	if resp, err := l.g.s.client.TimeToLive(ctx, l.g.id); err == nil && resp.TTL <= 0 {
		l.g.lose(&LostError{Reason: LeaseGone, LeaseID: l.g.id})
	}
	if lost := lostBy(l.g.handles); lost != nil { //nolint:contextcheck // asks, passes nothing on
		return lost
	}
	return &LostError{Reason: KeyDeleted, LeaseID: l.g.id, Key: l.entry.Key}
}

func (l *Lock) lose(cause *LostError) {
	l.end(cause)
	if l.lost() == cause && cause.Key != "" { // the loss of a lease is logged once for all
		l.g.log.Error("lock lost", "lock", l.name, "reason", cause.Reason.String())
	}
}
