package lease

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/internal/retry"
)

// stand is the acquisition of a candidate in an election. It stands in etcd's queue by itself, whoever else of its
// session wants the name, so that others see it; and while it waits it lets those pass who ask it to, by a new place at
// the end of the queue. Each place is an acquisition of its own: the one returned is the last.
func (l *Lock) stand(ctx context.Context, priority int) (*Lock, error) {
	l.mark = queue.CandidateMark(priority)
	ahead, err := l.enter(ctx)
	if err != nil {
		return l, err
	}
	var asked atomic.Int64 // the revision at which it was asked last to step back
	for !ahead.None {
		wait, stepBack := context.WithCancelCause(ctx)
		before := asked.Load()
		l.entry.Touched = func(rev int64) { // before the key is guarded
			asked.Store(rev)
			stepBack(errAsked)
		}
		err := l.overtake(wait, priority, before)
		if err == nil {
			err = l.await(wait, ahead)
		}
		stepBack(nil)
		if err == nil || !errors.Is(err, errAsked) {
			return l, err
		}
		var next *Lock
		if next, ahead, err = l.stepBack(ctx); err != nil {
			return l, err
		}
		l = next
	}
	return l, nil
}

var errAsked = errors.New("lease: asked to step back")

// overtake asks those of lower priority to let l pass.
func (l *Lock) overtake(ctx context.Context, priority int, asked int64) error {
	if priority == 0 {
		return nil
	}
	ctx, cancel := l.boundByHandle(ctx)
	defer cancel()
	return l.g.queue.Overtake(ctx, l.entry.Entry, asked)
}

// stepBack lets l go and returns an acquisition at the end of the queue in its stead, or l if its turn has come. On an
// error l is as it was, or gone.
func (l *Lock) stepBack(ctx context.Context) (*Lock, queue.Ahead, error) {
	if err := l.settled(ctx); err != nil {
		return l, queue.Ahead{}, err
	}
	next := l.g.s.newLock(l.g, l.name, l.owner)
	next.mark = l.mark
	next.choose()
	l.g.guards.Remove(&l.entry) // its end is our own doing from here on

	var ahead queue.Ahead
	stepped := false
	var pause retry.Backoff
	err := retry.While(ctx, l.g.handles, l.g.s.client, l.g.queue.Attempt, func(ctx context.Context) (err error) {
		for {
			// Looked at each time, and compared again by the server: who has become the owner stays. Then no earlier
			// attempt can arrive late either, since what it waited for is gone.
			ahead, err = l.g.queue.Ahead(ctx, l.entry.Entry)
			if errors.Is(err, queue.ErrGone) && next.late { // an earlier attempt may have done it
				gone := err
				if next.entry.Entry, err = l.g.queue.Find(ctx, next.entry.Entry); err == nil && next.entry.Rev == 0 {
					err = gone
				}
				stepped = err == nil
				return err
			}
			if err != nil || ahead.None {
				return err
			}
			next.late = next.late || retry.Copies(ctx) > 1 // though it may have been a read that was not answered
			stepped, next.entry.Entry, ahead, err = l.g.queue.StepBack(ctx, l.entry.Entry, next.entry.Entry, ahead, l.owner)
			if err != nil {
				next.late = next.late || !retry.Refused(err)
				return err
			}
			if stepped {
				return nil
			}
			// What is before l has changed, or somebody has put next's key there by hand.
			taken, err := l.g.queue.Find(ctx, next.entry.Entry)
			if err != nil {
				return err
			}
			if taken.Rev != 0 && !next.late {
				next.entry.Entry = queue.Entry{} // with another key; this one is not used again
				next.choose()
			}
			if err := pause.Sleep(ctx); err != nil {
				return err
			}
		}
	})
	if err == nil && stepped {
		l.end(errAbandoned)
		l.gone()
		return next, ahead, nil
	}
	next.end(errAbandoned)
	next.clear()
	return l, ahead, l.unlessGone(ctx, err)
}

// settled waits until those who stand before l and were asked to step back too have done so.
func (l *Lock) settled(ctx context.Context) error {
	ctx, cancel := l.boundByHandle(ctx)
	defer cancel()
	return l.unlessGone(ctx, l.g.queue.AwaitSettled(ctx, l.entry.Entry))
}

// releaseTo deletes l's key when the candidate with that value stands right behind it, so that the deletion is its
// turn. If that cannot be, it returns why, and the key is deleted all the same.
func (l *Lock) releaseTo(ctx context.Context, value string) (deleted bool, missed, err error) {
	for {
		next, err := l.promote(ctx, value)
		if err != nil {
			deleted, release := l.release(ctx)
			return deleted, err, release
		}
		var unsure, gone bool
		err = retry.While(ctx, l.g.handles, l.g.s.client, l.g.queue.Attempt, func(ctx context.Context) (err error) {
			deleted, gone, err = l.g.queue.LeaveTo(ctx, l.entry.Entry, next)
			unsure = unsure || err != nil && !retry.Refused(err)
			return err
		})
		if err != nil || deleted || gone {
			return deleted || unsure, nil, err
		}
		// The candidate has left or stepped back in the meantime: it is looked for again.
	}
}

// promote brings the first candidate with that value right behind l, which owns the queue.
func (l *Lock) promote(ctx context.Context, value string) (queue.Entry, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(l.g.handles, func() { stop(context.Cause(l.g.handles)) })() //nolint:contextcheck // ends with the lease too
	return l.g.queue.Promote(ctx, l.entry.Entry, value)
}
