package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/internal/retry"
)

// Lock waits until the lock called name is this caller's and returns it. Callers of one session are served in the
// order in which they came, and sessions take turns: see the package's section on order. A caller that holds the
// lock and asks for it again waits for itself.
//
// A name is 1 to 1,024 bytes of UTF-8 without NUL; "/" separates its parts, so it neither begins nor ends with
// one and has no "//". Names are independent: "a" and "a/b" never affect each other. The same key space is used
// by concurrency.Mutex with the same name and by etcdctl lock; they exclude each other and us.
//
// Ctx bounds the wait only; the lock is held until Unlock or a loss. On an error the caller holds nothing and
// has left the queue, or leaves it in the background: the error wraps ctx's cause if ctx ended, matches
// [ErrLost] if the session's lease or the place in the queue was lost while waiting, and [ErrClosed] if the
// session is closed, and [ErrRestored] if etcd's revisions went back. A lease that was lost before is replaced first.
func (s *Session) Lock(ctx context.Context, name string) (*Lock, error) {
	return s.LockWith(ctx, name, LockOptions{})
}

// LockWith is [Session.Lock] with options.
func (s *Session) LockWith(ctx context.Context, name string, opts LockOptions) (*Lock, error) {
	return s.acquire(ctx, name, opts, way{
		join:  func(l *Lock) { l.g.turns.join(l, false) },
		enter: (*Lock).enterAndWait,
	})
}

// way is how an acquisition comes to its turn.
type way struct {
	// join takes a place in the session's order. It does not block.
	join func(*Lock)
	// enter takes a place in the queue and waits until it is the first, as far as that is wanted. It returns the acquisition,
	// or the one that has taken its place.
	enter func(*Lock, context.Context) (*Lock, error)
}

// acquire checks the input and goes that way.
func (s *Session) acquire(ctx context.Context, name string, opts LockOptions, w way) (*Lock, error) {
	if err := queue.CheckName(name); err != nil {
		return nil, fmt.Errorf("lease: name %w", err)
	}
	opts, err := opts.resolve(s.opts)
	if err != nil {
		return nil, err
	}
	l, err := s.obtain(ctx, name, opts, w)
	if err != nil && !errors.Is(err, ErrLocked) {
		err = fmt.Errorf("lease: lock %q: %w", name, err)
	}
	return l, err
}

// obtain is acquire with input that has been checked, on a lease that is alive.
func (s *Session) obtain(ctx context.Context, name string, opts LockOptions, w way) (*Lock, error) {
	if !s.enterScope() {
		return nil, ErrClosed
	}
	defer s.leaveScope()
	for {
		l, err := s.obtainOnce(ctx, name, opts, w)
		switch {
		case err == nil:
			return l, nil
		case l != nil && ctx.Err() == nil && errors.Is(err, rpctypes.ErrLeaseNotFound):
			// The lease was gone before it was used: it is replaced, as if its loss had been known.
			l.g.lose(&LostError{Reason: LeaseGone, LeaseID: l.g.id})
		default:
			return nil, err
		}
	}
}

// obtainOnce is obtain on the present lease. The lock that it returns beside an error, if any, is not held.
func (s *Session) obtainOnce(ctx context.Context, name string, opts LockOptions, w way) (*Lock, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	var l *Lock
	err := s.withLease(ctx, func(g *grant) {
		l = s.newLock(g, name, opts.Owner)
		w.join(l)
	})
	if err != nil {
		return nil, err
	}
	if l, err = w.enter(l, ctx); err != nil {
		return l, l.abandon(err)
	}
	// Nobody is ahead of us. But the lock is held only if the lease still is, by our own clock; and a caller
	// who has given up is not handed a lock.
	l.g.checkDeadline()
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

// enterAndWait waits for its turn in the session, takes a place at the end of etcd's queue and waits for its turn
// there.
func (l *Lock) enterAndWait(ctx context.Context) (*Lock, error) {
	var ahead queue.Ahead
	var err error
	if l.waiter != nil {
		if ahead, err = l.awaitTurn(ctx); err != nil {
			return l, err
		}
	}
	if l.entry.Rev == 0 {
		if ahead, err = l.enter(ctx); err != nil {
			return l, err
		}
	}
	if ahead.None {
		return l, nil
	}
	return l, l.await(ctx, ahead)
}

// await waits for its turn in etcd's queue.
func (l *Lock) await(ctx context.Context, ahead queue.Ahead) error {
	// A waiter whose lease or key is gone must not wait for its turn to learn it.
	l.g.guards.Add(&l.entry)
	ctx, cancel := l.boundByHandle(ctx)
	defer cancel()
	return l.unlessGone(ctx, l.g.queue.Await(ctx, l.entry.Entry, ahead))
}

// unlessGone is err, or l's loss if err says that its key is gone.
func (l *Lock) unlessGone(ctx context.Context, err error) error {
	if !errors.Is(err, queue.ErrGone) {
		return err
	}
	lost := l.whyDeleted(ctx)
	l.lose(lost)
	return lost
}

// enter takes a place at the end of etcd's queue.
func (l *Lock) enter(ctx context.Context) (ahead queue.Ahead, err error) {
	for {
		l.choose()
		err = retry.While(ctx, l.g.handles, l.g.s.client, l.g.queue.Attempt, func(ctx context.Context) (err error) {
			l.entry.Entry, ahead, err = l.g.queue.Enter(ctx, l.entry.Entry, l.owner, l.late)
			l.late = l.late || err != nil && !retry.Refused(err) && !errors.Is(err, queue.ErrTaken)
			return err
		})
		if !errors.Is(err, queue.ErrTaken) {
			return ahead, err
		}
		l.entry.Entry = queue.Entry{} // with another key; this one is not used again
	}
}

// choose gives l a key, if it has none.
func (l *Lock) choose() {
	if l.entry.Key == "" {
		l.entry.Entry = l.g.take(l.name, l.mark)
	}
}

// hold makes the acquisition a handle.
func (l *Lock) hold(maxHold time.Duration) {
	l.ctx = fence.NewHolderContext(l.life, l.token, fence.Holder{Name: l.owner, TTL: l.g.ttl})
	l.g.remember(l)
	l.g.guards.Add(&l.entry)
	if maxHold > 0 {
		l.maxHold = time.AfterFunc(maxHold, func() { l.end(ErrMaxHold) })
	}
}

// abandon ends an acquisition that failed with err and clears what it may have left in the queue.
func (l *Lock) abandon(err error) error {
	lost := l.lost()
	if lost != nil {
		err = lost
	}
	l.end(errAbandoned)
	switch {
	case l.waiter != nil: // it never had its turn
	case lost != nil:
		l.g.guards.Remove(&l.entry)
		l.clear()
		l.pass()
	default:
		l.g.guards.Remove(&l.entry)
		l.bequeath()
	}
	return err
}

var errAbandoned = errors.New("lease: acquisition failed")
