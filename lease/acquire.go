package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/queue"
)

// Lock waits until the lock called name is this caller's and returns it. Callers, of this session or of any
// other, are served in the order in which they came. A caller that holds the lock and asks for it again waits for
// itself.
//
// A name is 1 to 1,024 bytes of UTF-8 without NUL; "/" separates its parts, so it neither begins nor ends with
// one and has no "//". Names are independent: "a" and "a/b" never affect each other. The same key space is used
// by concurrency.Mutex with the same name and by etcdctl lock; they exclude each other and us.
//
// Ctx bounds the wait only; the lock is held until Unlock or a loss. On an error the caller holds nothing and
// has left the queue, or leaves it in the background: the error wraps ctx's cause if ctx ended, matches
// [ErrLost] if the session's lease or the place in the queue was lost while waiting, and [ErrClosed] if the
// session is closed. A lease that was lost before is replaced first.
func (s *Session) Lock(ctx context.Context, name string) (*Lock, error) {
	return s.LockWith(ctx, name, LockOptions{})
}

// LockWith is [Session.Lock] with options.
func (s *Session) LockWith(ctx context.Context, name string, opts LockOptions) (*Lock, error) {
	return s.acquire(ctx, name, opts, (*Lock).enterAndWait)
}

// TryLock takes the lock called name if nobody has it or waits for it, or else returns at once an error that
// matches [ErrLocked] and carries the holder, a [*LockedError]. Other errors are those of [Session.Lock].
func (s *Session) TryLock(ctx context.Context, name string) (*Lock, error) {
	return s.TryLockWith(ctx, name, LockOptions{})
}

// TryLockWith is [Session.TryLock] with options.
func (s *Session) TryLockWith(ctx context.Context, name string, opts LockOptions) (*Lock, error) {
	return s.acquire(ctx, name, opts, (*Lock).tryEnter)
}

// acquire checks the input and takes a place in the queue by means of enter, on a lease that is alive.
func (s *Session) acquire(ctx context.Context, name string, opts LockOptions, enter func(*Lock, context.Context, string) error) (*Lock, error) {
	if err := queue.CheckName(name); err != nil {
		return nil, fmt.Errorf("lease: name %w", err)
	}
	opts, err := opts.resolve(s.opts)
	if err != nil {
		return nil, err
	}
	if !s.enterScope() {
		return nil, fmt.Errorf("lease: lock %q: %w", name, ErrClosed)
	}
	defer s.leaveScope()
	for {
		l, err := s.acquireOnce(ctx, name, opts, enter)
		switch {
		case err == nil:
			return l, nil
		case l != nil && ctx.Err() == nil && errors.Is(err, rpctypes.ErrLeaseNotFound):
			// The lease was gone before it was used: it is replaced, as if its loss had been known.
			l.g.lose(&LostError{Reason: LeaseGone, LeaseID: l.g.id})
			continue
		case errors.Is(err, queue.ErrTaken):
			continue // with another key; this one is not used again
		case errors.Is(err, ErrLocked):
			return nil, err
		}
		return nil, fmt.Errorf("lease: lock %q: %w", name, err)
	}
}

// acquireOnce is acquire on the present lease. The lock that it returns beside an error, if any, is not held.
func (s *Session) acquireOnce(ctx context.Context, name string, opts LockOptions, enter func(*Lock, context.Context, string) error) (*Lock, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	g, err := s.live(ctx)
	if err != nil {
		return nil, err
	}
	l := s.newLock(g, name)
	if err := enter(l, ctx, opts.Owner); err != nil {
		return l, l.abandon(err)
	}
	// Nobody is ahead of us. But the lock is held only if the lease still is, by our own clock; and a caller
	// who has given up is not handed a lock.
	g.checkDeadline()
	if ctx.Err() != nil || l.life.Err() != nil {
		return l, l.abandon(context.Cause(ctx))
	}
	l.token, err = fence.NewToken(s.opts.Era, l.entry.Rev)
	if err != nil {
		return l, l.abandon(err)
	}
	l.hold(opts.MaxHold)
	return l, nil
}

// boundByHandle is ctx, ended with the cause if the handle's life ends before it is held.
func (l *Lock) boundByHandle(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.life, func() { cancel(context.Cause(l.life)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// enterAndWait takes a place at the end of the queue and waits for its turn.
func (l *Lock) enterAndWait(ctx context.Context, owner string) error {
	var first bool
	err := queue.RetryWhile(ctx, l.g.handles, l.g.s.client, l.g.queue.Attempt, func(ctx context.Context) (err error) {
		l.entry, first, err = queue.Enter(ctx, l.g.s.client, l.entry, owner, l.late)
		l.late = l.late || err != nil && !queue.Refused(err)
		return err
	})
	if err != nil || first {
		return err
	}
	// A waiter watches its own key too: one whose lease is gone must not wait for its turn to learn it.
	l.watched = l.g.s.spawn(l.watch)
	ctx, cancel := l.boundByHandle(ctx)
	defer cancel()
	err = l.g.queue.Await(ctx, l.entry)
	if errors.Is(err, queue.ErrGone) {
		return l.whyDeleted(ctx)
	}
	return err
}

// tryEnter takes a place only if the queue is empty.
func (l *Lock) tryEnter(ctx context.Context, owner string) error {
	return queue.RetryWhile(ctx, l.g.handles, l.g.s.client, l.g.queue.Attempt, func(ctx context.Context) error {
		entry, holder, err := l.g.queue.TryEnter(ctx, l.entry, owner, l.late)
		// It may have entered and failed only then.
		l.late = l.late || err != nil && (entry.Rev != 0 || !queue.Refused(err))
		if err != nil {
			return err
		}
		if holder != nil {
			if !l.late {
				l.g.recycle(l.entry)
			}
			token, _ := fence.NewToken(l.g.s.opts.Era, holder.CreateRevision) // 0 if it is no legal one
			return &LockedError{Name: l.name, Owner: string(holder.Value), Key: string(holder.Key), Token: token}
		}
		l.entry = entry
		return nil
	})
}

// hold makes the acquisition a handle.
func (l *Lock) hold(maxHold time.Duration) {
	l.ctx = fence.NewContext(l.life, l.token)
	l.g.remember(l)
	if !l.watched {
		l.g.young.add(l)
	}
	if maxHold > 0 {
		l.maxHold = time.AfterFunc(maxHold, func() { l.end(ErrMaxHold) })
	}
}

// abandon ends an acquisition that failed with err and clears what it may have left in the queue.
func (l *Lock) abandon(err error) error {
	if lost := l.lost(); lost != nil {
		err = lost
	}
	l.end(errAbandoned)
	l.reap()
	return err
}

var errAbandoned = errors.New("lease: acquisition failed")
