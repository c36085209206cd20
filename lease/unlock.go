package lease

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/internal/retry"
)

// Unlock lets the lock go: the context ends, then the key is deleted if it is still this hold's.
//
// The error is nil if the lock was held until now, matches [ErrLost] if it had been lost, which is told once,
// and [ErrUnlocked] if Unlock was called before. If ctx ends before the server has confirmed, the error wraps
// ctx's cause and the deletion goes on in the background until it is confirmed or the lease has gone; Unlock may be
// called again then, to wait for that. If the lease ends before the server has confirmed, the error matches ErrLost too,
// and says that the key is deleted in the background: the lock was held until Unlock was called.
func (l *Lock) Unlock(ctx context.Context) error {
	if err := l.unlock(ctx, l.release); err != nil {
		return fmt.Errorf("lease: unlock %q: %w", l.name, err)
	}
	return nil
}

// unlock is Unlock, where release deletes the key and reports whether it was still there.
func (l *Lock) unlock(ctx context.Context, release func(context.Context) (bool, error)) error {
	if l.unlocked.Swap(true) {
		return l.confirm(ctx)
	}
	l.g.checkDeadline() // its timer may be late
	l.end(ErrUnlocked)
	if l.maxHold != nil {
		l.maxHold.Stop()
	}
	l.g.guards.Remove(&l.entry)
	l.g.forget(l)
	if lost := l.lost(); lost != nil {
		if lost.Reason == KeyDeleted {
			l.gone()
		} else {
			l.clear()
		}
		l.pass()
		return lost
	}
	deleted, err := release(ctx)
	if err != nil {
		l.clear()
		l.unconfirmed.Store(true)
		return fmt.Errorf("%w; it is deleted in the background", err)
	}
	l.gone()
	if !deleted {
		return l.whyDeleted(ctx)
	}
	return nil
}

// confirm is a further Unlock: it waits for the deletion if that was not confirmed before.
func (l *Lock) confirm(ctx context.Context) error {
	if !l.unconfirmed.Load() {
		return ErrUnlocked
	}
	err := retry.While(ctx, l.g.handles, l.g.s.client, l.g.queue.Attempt, func(ctx context.Context) error {
		_, err := l.g.queue.Leave(ctx, l.entry.Entry) // the create revision is compared: a key that is used again stays
		return err
	})
	if err != nil {
		return fmt.Errorf("%w; it is deleted in the background", err)
	}
	l.unconfirmed.Store(false)
	return nil
}

// release deletes the key and, if another acquisition of the session waits for the name, enters for it in the same
// transaction. It reports false if somebody else had deleted the key.
func (l *Lock) release(ctx context.Context) (deleted bool, err error) {
	var unsure bool // after a request whose answer was lost, a key that is missing is most likely our own deletion
	var p place
	next := l.g.turns.leave(l)
	handOver := next != nil
	if handOver {
		p.entry = l.g.take(l.name, next.mark)
	}
	err = retry.While(ctx, l.g.handles, l.g.s.client, l.g.queue.Attempt, func(ctx context.Context) (err error) {
		if handOver {
			deleted, p.entry, p.ahead, err = l.g.queue.HandOver(ctx, l.entry.Entry, p.entry, next.owner)
			sent := err != nil && !retry.Refused(err)
			p.late, unsure = p.late || sent, unsure || sent
			if deleted || sent && !errors.Is(err, rpctypes.ErrNoSpace) || errors.Is(err, retry.ErrNotSent) {
				return err
			}
			// The key was gone already, or the next one may not enter, or there is no space for it: it is to find out by
			// itself.
			handOver = false
		}
		deleted, err = l.g.queue.Leave(ctx, l.entry.Entry)
		unsure = unsure || err != nil && !retry.Refused(err)
		return err
	})
	l.g.give(next, p)
	return deleted || unsure, err
}

// clear has the key deleted in the background, if it was ever sent.
func (l *Lock) clear() {
	switch {
	case l.entry.Rev != 0 || l.late:
		l.g.reaper.add(l.entry.Entry, l.late)
	case l.entry.Key != "":
		l.g.recycle(l.entry.Entry)
	}
}

// gone is clear for a key that is deleted already, as far as anybody knows.
func (l *Lock) gone() {
	if l.late {
		l.g.reaper.add(l.entry.Entry, true)
		return
	}
	l.g.recycle(l.entry.Entry)
}
