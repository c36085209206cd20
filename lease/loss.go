package lease

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/internal/retry"
)

// inquest finds out why keys were deleted: one question for all that were deleted meanwhile.
type inquest struct {
	mu      sync.Mutex // guards the fields below
	locks   []*Lock
	running bool
}

// keyEnded is told that somebody else has deleted or overwritten l's key. It does not wait.
func (l *Lock) keyEnded(end queue.End) {
	if end == queue.Overwritten {
		l.lose(&LostError{Reason: KeyOverwritten, LeaseID: l.g.id, Key: l.entry.Key})
		return
	}
	q := &l.g.inquest
	q.mu.Lock()
	defer q.mu.Unlock()
	q.locks = append(q.locks, l)
	if !q.running {
		q.running = l.g.s.spawn(l.g.inquire)
	}
}

// inquire ends the handles whose keys were deleted.
func (g *grant) inquire(ctx context.Context) {
	q := &g.inquest
	for {
		q.mu.Lock()
		locks := q.locks
		q.locks = nil
		q.running = len(locks) > 0
		q.mu.Unlock()
		if len(locks) == 0 {
			return
		}
		if g.leaseGone(ctx) != nil {
			continue // every handle has ended with it
		}
		for _, l := range locks {
			l.lose(l.keyDeleted())
		}
	}
}

// leaseGone asks whether the lease is gone; if so every handle on it is lost. It returns why.
func (g *grant) leaseGone(ctx context.Context) *LostError {
	if !g.checkDeadline() { // its timer may be late: the lease has most likely expired, and its keys with it
		return lostBy(g.handles) //nolint:contextcheck // asks, passes nothing on
	}
	// Not for long: the handles have to end now, whether the reason is known or not. So every endpoint is asked at once.
	ctx, cancel := context.WithTimeout(retry.Everywhere(ctx, g.s.client), 250*time.Millisecond)
	defer cancel()
	resp, err := retry.Send(ctx, func(ctx context.Context) (*clientv3.LeaseTimeToLiveResponse, error) {
		return g.s.client.TimeToLive(ctx, g.id)
	})
	if err == nil && resp.TTL <= 0 {
		g.lose(&LostError{Reason: LeaseGone, LeaseID: g.id})
	}
	return lostBy(g.handles) //nolint:contextcheck // asks, passes nothing on
}

// whyDeleted is the loss of a lock whose key is not there any more.
func (l *Lock) whyDeleted(ctx context.Context) *LostError {
	if lost := l.g.leaseGone(ctx); lost != nil {
		return lost
	}
	return l.keyDeleted()
}

func (l *Lock) keyDeleted() *LostError {
	return &LostError{Reason: KeyDeleted, LeaseID: l.g.id, Key: l.entry.Key}
}

// lose ends the handle because its key was lost. Where the key is gone, the next of the session need not wait until
// it is unlocked.
func (l *Lock) lose(cause *LostError) {
	l.end(cause)
	if l.lost() != cause || cause.Key == "" { // the loss of a lease is logged once for all
		return
	}
	l.g.guards.Remove(&l.entry)
	l.g.log.Error("lock lost", "lock", l.name, "reason", cause.Reason.String())
	if cause.Reason == KeyDeleted {
		l.pass()
	}
}
