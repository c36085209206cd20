package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/scope"
)

// Unlock releases the lock: it ends the context, then deletes the key if that is still this hold's.
//
// The error is nil if the lock was held until now. It matches [ErrLost] if the lock had already been lost; only the
// first call reports that. It matches [ErrUnlocked] if Unlock was called before. If ctx ends before the server has
// confirmed, the error wraps ctx's cause. The deletion then goes on in the background until it is confirmed or the
// lease has ended, and Unlock may be called again to wait for it. If the lease ends before the server has confirmed,
// the error matches ErrLost too, and says that the key will be deleted in the background; the lock was held until
// Unlock was called. Ctx may be the lock's own context, which Unlock ends: Unlock then goes on for as long as a few
// attempts take.
func (l *Lock) Unlock(ctx context.Context) error {
	if err := l.unlock(ctx, nil); err != nil {
		return fmt.Errorf("lease: unlock %s: %w", l.label(), err)
	}
	return nil
}

// unlock is Unlock. HandOver, if not nil, may first delete the key in its own way.
func (l *Lock) unlock(ctx context.Context, handOver func(context.Context) (deleted bool, err error)) (err error) {
	then := time.Now()
	l.g.checkDeadline() // the deadline's timer may be late
	if l.unlocked.Swap(true) {
		l.end(ErrUnlocked) // the first call may not have come that far
		return l.confirm(ctx)
	}
	ended := ctx.Err() != nil && l.life.Err() == nil
	reports := l.hooked.unlocking()
	l.end(ErrUnlocked)
	ctx, cancel := scope.Beyond(ctx, l.life, ended, releaseBound(l.g.ttl))
	defer cancel()
	if l.timer != nil {
		l.timer.Stop()
	}
	l.each(func(c *contender) { c.g.guards.Remove(&c.entry) })
	if lost := l.lost(); lost != nil {
		if reports {
			l.hooked.lost(lost)
		}
		l.each((*contender).clear)
		l.pass()
		return lost
	}
	if reports {
		defer func() { l.hooked.released(then, err) }()
	}
	gone := l.contender
	if handOver != nil {
		var deleted bool
		if deleted, err = handOver(ctx); deleted {
			gone = nil
		}
	}
	if gone != nil && err == nil {
		gone, err = l.release(ctx)
	}
	if err != nil {
		l.each((*contender).clear)
		l.unconfirmed.Store(true)
		return fmt.Errorf("%w; the key will be deleted in the background", err)
	}
	l.each((*contender).gone)
	if gone != nil {
		return gone.whyDeleted(ctx)
	}
	return nil
}

// confirm is a repeated Unlock: it waits for the deletion if that is not confirmed yet.
func (l *Lock) confirm(ctx context.Context) error {
	if !l.unconfirmed.Load() {
		return ErrUnlocked
	}
	ctx, cancel := scope.Beyond(ctx, l.life, false, releaseBound(l.g.ttl)) // ctx may be the lock's own again
	defer cancel()
	_, err := l.g.while(ctx, func(a *etcd.Attempt) error {
		_, err := l.g.queue.Leave(a, l.entries()) // compares create revisions: a key that is used again stays
		return err
	})
	if err != nil {
		return fmt.Errorf("%w; the key will be deleted in the background", err)
	}
	l.unconfirmed.Store(false)
	return nil
}

// release deletes the key and, if another acquisition of the session waits for the name, enters for it in the same
// transaction; or it deletes all keys of a set. It returns the contender whose key somebody else had deleted, nil if
// nobody had.
func (c *contender) release(ctx context.Context) (gone *contender, err error) {
	set, missing, p := c.entries(), []int(nil), place{}
	next := c.g.turns.leave(c) // nil for a set, which has no turn
	handOver := next != nil
	if handOver {
		p.entry = c.g.take(c.name, "", false)
	}
	late, err := c.g.while(ctx, func(a *etcd.Attempt) (err error) {
		if handOver {
			p.ahead, err = c.g.queue.HandOver(a, set[0], &p.entry, next.owner)
			unknown := err != nil && !etcd.Refused(err)
			p.late = p.late || unknown
			if p.entry.Rev != 0 || unknown && !errors.Is(err, rpctypes.ErrNoSpace) || errors.Is(err, etcd.ErrNotSent) {
				return err
			}
			// The key was gone already, or the next acquisition may not enter, or there is no space for its key: it
			// enters by itself and finds out.
			handOver = false
		}
		missing, err = c.g.queue.Leave(a, set)
		return err
	})
	c.g.give(next, p)
	// If an earlier request had no answer, it most likely was our own deletion. It deletes all keys of a set together.
	if err != nil || len(missing) == 0 || (late || p.late) && len(missing) == len(set) {
		return nil, err
	}
	return c.all()[missing[0]], nil
}

// clear deletes the key in the background, if it was ever sent.
func (c *contender) clear() {
	switch {
	case c.entry.Rev != 0 || c.late:
		c.g.reaper.add(c.entry.Entry, c.late)
	case c.entry.Key != "":
		c.g.recycle(c.entry.Entry)
	}
}

// gone is clear for a key that is already deleted, as far as we know.
func (c *contender) gone() {
	if c.late {
		c.g.reaper.add(c.entry.Entry, true)
		return
	}
	c.g.recycle(c.entry.Entry)
}
