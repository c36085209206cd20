package sqlmark

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasefence/leasefence/fence"
)

// errBehind ends an attempt whose token is newer than the mark.
var errBehind = errors.New("sqlmark: token is newer than the mark")

// Do runs fn in a transaction that the guard has opened, and commits it; in the shared form if shared is set. It begins
// again what the server has undone.
func (e *Engine[T]) Do(ctx context.Context, db DB[T], resource string, t fence.Token, shared bool,
	fn func(ctx context.Context, tx T) error,
) error {
	return e.retry(ctx, func() error {
		err := e.attempt(ctx, db, resource, t, shared, fn)
		if !errors.Is(err, errBehind) {
			return err
		}
		// The transaction may have a snapshot from before it got the mark, see the store. Once the claim is committed,
		// the next one cannot.
		if err := e.Claim(ctx, db, resource, t); err != nil {
			return err
		}
		err = e.attempt(ctx, db, resource, t, shared, fn)
		if errors.Is(err, errBehind) {
			return fmt.Errorf("%s: do %q: %w", e.pkg, resource, errMoved)
		}
		return err
	})
}

// attempt is one transaction.
func (e *Engine[T]) attempt(ctx context.Context, db DB[T], resource string, t fence.Token, shared bool,
	fn func(ctx context.Context, tx T) error,
) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return fmt.Errorf("%s: do %q: begin: %w", e.pkg, resource, err)
	}
	// After a COMMIT it does nothing. If it fails the driver gives the connection up, and the server rolls back.
	defer func() { _ = tx.Rollback(ctx) }()

	seen, err := e.store.lock(ctx, tx, resource, t, shared)
	if err != nil {
		return e.explain("do", resource, err)
	}
	if stale := refuse(resource, t, seen.mark); stale != nil {
		return e.refused(ctx, tx, "do", resource, stale, tx.Commit)
	}
	if seen.mark < t {
		return errBehind
	}
	if err := fn(ctx, tx); err != nil {
		return err
	}
	// Looked at here, so that a context that has ended by now is not taken for a COMMIT without an answer.
	if ctx.Err() != nil {
		return fmt.Errorf("%s: do %q: not committed: %w", e.pkg, resource, context.Cause(ctx))
	}
	return e.commit(ctx, tx, resource)
}

func (e *Engine[T]) commit(ctx context.Context, tx T, resource string) error {
	err := tx.Commit(ctx)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, e.ended):
		return fmt.Errorf("%w: do %q: fn has ended the transaction, or the context has: %w",
			Unknown.Of(e.pkg), resource, err)
	case e.store.undone(err) || e.unsent(err):
		return fmt.Errorf("%s: do %q: not committed: %w", e.pkg, resource, err)
	default:
		return fmt.Errorf("%w: do %q: commit: %w", Unknown.Of(e.pkg), resource, err)
	}
}

// repeatable reports whether a transaction that ended with err can begin again.
func (e *Engine[T]) repeatable(err error) bool {
	return !errors.Is(err, Unknown.Of(e.pkg)) && e.store.transient(err)
}
