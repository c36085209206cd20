package lease

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/scope"
)

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
