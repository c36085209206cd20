package lease

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/scope"
)

// Do runs fn while it holds the lock called name, which it waits for as [Session.Lock] does.
//
// The context that fn gets ends when the lock is lost or ctx ends; [context.Cause] says which. It has ctx's
// values, and the token for [fence.FromContext], which is the second argument too. Do releases the lock only
// when fn has returned: if the lock is lost it cancels, waits for fn however long that takes, and reports both
// errors. If fn panics the lock is released and the panic goes on. The release does not depend on ctx and takes 8 s
// at most; a key that remains then will be deleted in the background. Fn must not close the session, which would wait for fn.
//
// The error joins what fn returned, the loss ([ErrLost], [ErrMaxHold] or [ErrAskedToRelease]) if there was one, and a failure to
// unlock. If the lock was not obtained, fn is not called and the error is that of [Session.Lock].
func (s *Session) Do(ctx context.Context, name string, fn func(ctx context.Context, token fence.Token) error, opts ...LockOption) error {
	return s.do(ctx, name, s.Lock, fn, opts)
}

// TryDo is [Session.Do] with the lock taken as [Session.TryLock] takes it: where somebody has it or waits for it, fn is not
// called, and TryDo returns at once an error that matches [ErrLocked] and carries the holder, a [*LockedError]. The lock
// excludes only while fn runs: for work once per tick on any of several machines, use an election.
func (s *Session) TryDo(ctx context.Context, name string, fn func(ctx context.Context, token fence.Token) error, opts ...LockOption) error {
	return s.do(ctx, name, s.TryLock, fn, opts)
}

func (s *Session) do(
	ctx context.Context, name string, take func(context.Context, string, ...LockOption) (*Lock, error),
	fn func(ctx context.Context, token fence.Token) error, opts []LockOption,
) (err error) {
	if fn == nil {
		return errNoFunction
	}
	if !s.enterScope() { // so that Close waits for fn
		return fmt.Errorf("lease: lock %q: %w", name, ErrClosed)
	}
	defer s.leaveScope()
	l, err := take(ctx, name, opts...)
	if err != nil {
		return err
	}
	work, done := scope.Work(l.Context(), ctx)
	defer done()
	// First of the deferred, so that work ends with the handle and for its reason.
	defer func() { err = errors.Join(err, l.finish(ctx)) }()
	return fn(work, l.Token())
}

// finish unlocks at the end of Do, on a context of its own: ctx may have ended, and that is no reason to keep
// the lock. Its bound has room for several attempts.
func (l *Lock) finish(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseBound(l.g.ttl))
	defer cancel()
	ended := context.Cause(l.life) //nolint:contextcheck // asks, passes nothing on
	err := l.Unlock(ctx)
	if errors.Is(ended, ErrMaxHold) || errors.Is(ended, ErrAskedToRelease) {
		err = errors.Join(fmt.Errorf("lease: lock %s: %w", l.label(), ended), err)
	}
	return err
}
