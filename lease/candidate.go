package lease

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/internal/candidacy"
	"github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/internal/scope"
)

func init() {
	candidacy.Campaign = campaign
	candidacy.Enter = func(session any) (leave func()) {
		s := session.(*Session)
		if !s.enterScope() {
			return nil
		}
		return s.leaveScope
	}
	candidacy.Logger = func(session any) *slog.Logger { return session.(*Session).log }
}

func campaign(ctx context.Context, session any, name, value string, as candidacy.Candidate) (candidacy.Hold, error) {
	s := session.(*Session)
	opts := lockOptions{owner: value}
	if value == "" {
		opts.owner = s.opts.Owner
	}
	l, err := s.obtain(ctx, name, opts, mode{
		kind:  KindLeadership,
		enter: func(c *contender, ctx context.Context) (*contender, error) { return c.stand(ctx, as) },
	})
	if err != nil {
		return candidacy.Hold{}, err
	}
	return candidacy.Hold{
		Lock: l, Queue: l.g.queue, Entry: l.entry.Entry, Patience: releaseBound(l.g.ttl),
		While:   l.g.while,
		Ended:   l.ended,
		Overdue: func() time.Duration { return -l.g.untilRenewal() },
		Release: l.unlock,
	}, nil
}

// ended records what was found of l's key.
func (l *Lock) ended(ctx context.Context, end queue.End) {
	if end == queue.Deleted {
		_ = l.loseKey(ctx)
	} else {
		l.keyEnded(end)
	}
}

// stand acquires as a candidate. If its key is deleted while it waits, it enters again at the end of the queue. Each
// place is a contender of its own; stand returns the last.
func (c *contender) stand(ctx context.Context, as candidacy.Candidate) (*contender, error) {
	for again := false; ; again = true {
		c.mark, c.entry.Touched = as.Mark, as.Touched
		ahead, err := c.enter(ctx)
		switch {
		case again && !isCause(ctx, err) && errors.Is(err, rpctypes.ErrLeaseNotFound): // the key was deleted because its lease had gone
			lost := &LostError{Reason: ReasonLeaseGone, LeaseID: c.g.id}
			c.g.lose(lost)
			return c, lost
		case err != nil || ahead[0].None:
			return c, err
		}
		if err := c.awaitOwn(ctx, ahead[0], as); !errors.Is(err, queue.ErrGone) {
			return c, err
		}
		c.g.guards.Remove(&c.entry)
		c.end(errAbandoned)
		c.gone()
		c = (&contender{name: c.name, lockOptions: c.lockOptions, hooked: c.hooked}).on(c.g)
	}
}

// The state of a waiting candidate. It decides what the deletion of its key means.
const (
	waits  int32 = iota // it enters again
	leads               // a loss
	passed              // nothing: the deletion is known
)

// awaitOwn waits until nobody is ahead of a candidate. The error matches queue.ErrGone if its key is deleted before
// that.
func (c *contender) awaitOwn(ctx context.Context, ahead queue.Ahead, as candidacy.Candidate) error {
	c.hooked.queued(ahead.Key)
	wait, pass := context.WithCancelCause(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer pass(nil)

	var state atomic.Int32
	c.entry.Ended = func(end queue.End) {
		if end == queue.Deleted && state.CompareAndSwap(waits, passed) {
			pass(queue.ErrGone)
		}
		if state.Load() != passed {
			c.keyEnded(end)
		}
	}
	c.g.guards.Add(&c.entry)
	wait, cancel := scope.Join(wait, c.life)
	defer cancel()
	beside.Go(func() { as.Waits(wait, c.g.queue, c.entry.Entry) })
	err := c.g.queue.AwaitOwn(wait, c.entry.Entry, ahead)
	if err == nil && !state.CompareAndSwap(waits, leads) {
		return queue.ErrGone
	}
	return err
}
