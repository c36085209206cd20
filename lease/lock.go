package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/audit"
	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/scope"
)

// Lock is a lock that was acquired: a Lock exists only after a successful acquisition. Its methods are safe for
// concurrent use. Unlock it when you are done.
type Lock struct {
	*contender

	token fence.Token
	made  sync.Once       // makes ctx on first use
	ctx   context.Context //nolint:containedctx // the contender's life, with the token
	timer *time.Timer     // of WithMaxHold; nil without

	unlocked    atomic.Bool
	unconfirmed atomic.Bool // unlocked, but the deletion of the key is not confirmed
}

// Token returns the fencing token of this hold: larger than that of every earlier holder of the name. It is fixed at
// the grant; a lost handle never shows its successor's token.
func (l *Lock) Token() fence.Token { return l.token }

// Context returns a context that ends when the lock is lost or unlocked, whichever comes first. Its [context.Cause] is
// a [*LostError], [ErrUnlocked], [ErrMaxHold] or [ErrAskedToRelease]. It ends before the server can grant the lock to
// somebody else (see the package's guarantees), with no help from the network. It carries the token for
// [fence.FromContext] and the name, with the session's prefix, for [fence.LockFromContext]. It is not tied to the
// context given to Lock.
func (l *Lock) Context() context.Context {
	l.made.Do(func() {
		if l.shared {
			l.ctx = fence.WithLock(fence.NewReadContext(l.life, fence.ReadToken(l.token)), l.names()...)
			return
		}
		ctx := fence.WithLock(fence.NewContext(l.life, l.token), l.names()...)
		l.ctx = audit.NewContext(ctx, audit.Holder{Name: l.owner, TTL: l.g.ttl})
	})
	return l.ctx
}

// names returns the names, with the prefix, of the locks that the token belongs to: all names of a set; of a tree only
// the node's queue as its keys spell it, since Session.Lock of the path is another lock.
func (c *contender) names() []string {
	all := make([]string, 1, 1+len(c.with))
	all[0] = c.g.s.opts.Prefix + c.name
	for _, other := range c.with {
		if !other.shared {
			all = append(all, other.g.s.opts.Prefix+other.name)
		}
	}
	return all
}

// Err returns nil while the lock is held, and then the cause of its context. It reads the clock itself: in a process
// that has just woken up from a pause, it is right even before the timer that ends the context has run. Call it just
// before a write to save a round trip that the resource would refuse.
func (l *Lock) Err() error {
	l.g.checkDeadline()
	return context.Cause(l.life)
}

// Deadline returns when the lock is lost unless the session renews its lease before, as it does every third of the TTL.
func (l *Lock) Deadline() time.Time { return l.g.status().Deadline }

// Name returns the name that was locked, without the session's prefix.
func (l *Lock) Name() string { return l.name }

// Key returns the lock's key in etcd.
func (l *Lock) Key() string { return l.entry.Key }

// IsOwner returns a comparison for the caller's own etcd transactions: it is true while this hold's key exists. The
// server checks it, unlike the context, in one step with the transaction. Put a read or a write into that transaction:
// any member answers a transaction that only compares, and that member may lag.
func (l *Lock) IsOwner() clientv3.Cmp { return l.entry.Held() }

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

// Do waits for the lock called name as [Session.Lock] does, and runs fn while it holds the lock.
//
// The context that fn gets ends when the lock is lost or ctx ends; [context.Cause] says which. It has ctx's values, and
// the token for [fence.FromContext], which is also the second argument. Do releases the lock only after fn has
// returned: if the lock is lost, Do cancels the context, waits for fn however long that takes, and reports both errors.
// If fn panics, Do releases the lock and the panic propagates. The release does not depend on ctx and takes at most 8
// s; a key that remains then will be deleted in the background. Fn must not close the session, which would wait for fn.
//
// The error joins the error of fn, the loss ([ErrLost], [ErrMaxHold] or [ErrAskedToRelease]) if there was one, and a
// failure to unlock. If the lock was not obtained, fn is not called and the error is that of [Session.Lock].
func (s *Session) Do(ctx context.Context, name string, fn func(ctx context.Context, token fence.Token) error, opts ...LockOption) error {
	return s.do(ctx, name, func() (*Lock, error) { return s.Lock(ctx, name, opts...) }, fn)
}

// TryDo is [Session.Do] with the lock taken as [Session.TryLock] takes it: if somebody holds the lock or waits for it,
// TryDo returns at once a [*LockedError], which matches [ErrLocked] and names the holder, and does not call fn. The
// lock excludes only while fn runs: for work once per tick on any of several machines, use an election.
func (s *Session) TryDo(ctx context.Context, name string, fn func(ctx context.Context, token fence.Token) error, opts ...LockOption) error {
	return s.do(ctx, name, func() (*Lock, error) { return s.TryLock(ctx, name, opts...) }, fn)
}

var errNoFunction = errors.New("lease: fn is nil, want a function")

// do is Do for every kind of lock: take acquires it.
func (s *Session) do(ctx context.Context, name string, take func() (*Lock, error), fn func(context.Context, fence.Token) error) (err error) {
	if fn == nil {
		return errNoFunction
	}
	if !s.enterScope() { // so that Close waits for fn
		return fmt.Errorf("lease: lock %q: %w", name, ErrClosed)
	}
	defer s.leaveScope()
	l, err := take()
	if err != nil {
		return err
	}
	work, done := scope.Work(l.Context(), ctx)
	defer done()
	// Runs before done, so that the work's context ends with the handle and with the handle's cause.
	defer func() { err = errors.Join(err, l.finish(ctx)) }()
	return fn(work, l.Token())
}

// finish unlocks at the end of Do, on a context of its own: ctx may have ended, and that is no reason to keep the lock.
// Its bound has room for several attempts.
func (l *Lock) finish(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseBound(l.g.ttl))
	defer cancel()
	ended := context.Cause(l.life)
	err := l.Unlock(ctx)
	if errors.Is(ended, ErrMaxHold) || errors.Is(ended, ErrAskedToRelease) {
		err = errors.Join(fmt.Errorf("lease: lock %s: %w", l.label(), ended), err)
	}
	return err
}
