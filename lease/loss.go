package lease

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// lossCheck finds out why keys were deleted, with one request for all that were deleted meanwhile.
type lossCheck struct {
	mu      sync.Mutex // guards the fields below
	deleted []*contender
	running bool
}

// keyEnded is called when somebody else has deleted or overwritten c's key, or asks for its release. It does not block.
func (c *contender) keyEnded(end queue.End) {
	switch end {
	case queue.Overwritten:
		c.lose(&LostError{Reason: ReasonKeyOverwritten, LeaseID: c.g.id, Key: c.entry.Key})
		return
	case queue.Unwanted:
		c.g.checkDeadline() // a loss that has already happened comes first
		c.end(ErrAskedToRelease)
		return
	}
	q := &c.g.lossCheck
	q.mu.Lock()
	defer q.mu.Unlock()
	q.deleted = append(q.deleted, c)
	if !q.running {
		q.running = c.g.s.spawn(c.g.checkLosses)
	}
}

func (g *grant) checkLosses(ctx context.Context) {
	q := &g.lossCheck
	for {
		q.mu.Lock()
		deleted := q.deleted
		q.deleted = nil
		q.running = len(deleted) > 0
		q.mu.Unlock()
		if len(deleted) == 0 {
			return
		}
		if g.leaseGone(ctx) != nil {
			continue // every handle has ended with the lease
		}
		for _, c := range deleted {
			c.lose(c.keyDeleted())
		}
	}
}

// leaseGone asks whether the lease is gone; if so, every handle on it is lost. It returns that loss, or nil.
func (g *grant) leaseGone(ctx context.Context) *LostError {
	if !g.checkDeadline() { // the timer may be late: the lease has most likely expired, and its keys with it
		return lostBy(g.handles)
	}
	// Briefly: the handles have to end now, even if the reason stays unknown. So every endpoint is asked at once.
	ctx, cancel := context.WithTimeout(ctx, 250*time.Millisecond)
	defer cancel()
	resp, err := timeToLive(g.s.conn.Once(ctx).Beside(0), g.s.conn.Client, g.id)
	if err == nil && resp.GrantedTTL == 0 { // TTL is rounded down to seconds: at 0 the lease may be alive
		g.lose(&LostError{Reason: ReasonLeaseGone, LeaseID: g.id})
	}
	return lostBy(g.handles)
}

func timeToLive(a *etcd.Attempt, client *clientv3.Client, id clientv3.LeaseID, opts ...clientv3.LeaseOption,
) (*clientv3.LeaseTimeToLiveResponse, error) {
	return etcd.Send(a, func(ctx context.Context) (*clientv3.LeaseTimeToLiveResponse, error) {
		return client.TimeToLive(ctx, id, opts...)
	})
}

// spoilt reports whether the lease, on which etcd has denied us permission, is useless: it has no key of ours, and
// somebody else has attached one, as etcd lets everybody do then. A user that may not write all keys of a lease can
// neither attach a key to it nor renew it.
func (g *grant) spoilt(ctx context.Context) bool {
	if g.adopted || len(g.keys.inUse()) > 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, g.queue.Bound)
	defer cancel()
	resp, err := timeToLive(g.s.conn.Once(ctx), g.s.conn.Client, g.id, clientv3.WithAttachedKeys())
	if err != nil {
		return errors.Is(err, rpctypes.ErrPermissionDenied) // to read a key of the lease
	}
	others := slices.ContainsFunc(resp.Keys, func(key []byte) bool { return !strings.Contains(string(key), g.s.nonce) })
	return others && len(g.keys.inUse()) == 0
}

// loseKey ends a contender whose key was found gone, and returns the loss.
func (c *contender) loseKey(ctx context.Context) *LostError {
	lost := c.whyDeleted(ctx)
	c.lose(lost)
	return lost
}

// whyDeleted returns the loss of a lock whose key is gone.
func (c *contender) whyDeleted(ctx context.Context) *LostError {
	if lost := c.g.leaseGone(ctx); lost != nil {
		return lost
	}
	return c.keyDeleted()
}

func (c *contender) keyDeleted() *LostError {
	return &LostError{Reason: ReasonKeyDeleted, LeaseID: c.g.id, Key: c.entry.Key}
}

// lose ends the handle because its key was lost. If the key is gone, the next acquisition of the session need not wait
// for Unlock.
func (c *contender) lose(cause *LostError) {
	c.end(cause)
	why := context.Cause(c.life)
	outlived := errors.Is(why, ErrMaxHold) || errors.Is(why, ErrAskedToRelease) // by the hold, which lasts until Unlock
	if c.lost() != cause && !outlived || cause.Key == "" {                      // the loss of a lease is logged once for all its locks
		return
	}
	c.g.guards.Remove(&c.entry)
	c.g.s.log.Error("lock lost", "lock", nodeName(c.name), "reason", cause.Reason.String())
	if cause.Reason == ReasonKeyDeleted {
		c.pass()
	}
}
