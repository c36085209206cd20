package sqlmark

import (
	"context"
	"fmt"

	"github.com/leasefence/leasefence/fence"
)

// Claim raises the mark to t, in a transaction of its own, and waits for those that hold it with an older token.
func (e *Engine[T]) Claim(ctx context.Context, db DB[T], resource string, t fence.Token) error {
	return e.retry(ctx, func() error {
		// A mark that is t was raised with older transactions waited for; to write it again would have to wait for those
		// that share it.
		mark, err := e.store.peek(ctx, db, resource)
		if err == nil && mark < t {
			if err = e.store.announce(ctx, db, resource, t); err == nil {
				mark, err = e.raise(ctx, db, resource, t)
			}
		}
		if err != nil {
			return e.explain("claim", resource, err)
		}
		committed := func(context.Context) error { return nil }
		return e.refused(ctx, db, "claim", resource, refuse(resource, t, mark), committed)
	})
}

// raise raises the mark, in one transaction with the rows of the audit trail if there is one.
func (e *Engine[T]) raise(ctx context.Context, db DB[T], resource string, t fence.Token) (fence.Token, error) {
	if e.trail == nil {
		return e.store.raise(ctx, db, resource, t)
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	mark, err := e.store.raise(ctx, tx, resource, t)
	if err != nil || mark != t {
		return mark, err
	}
	if err := e.trail.begin(ctx, tx, resource, t); err != nil {
		return 0, err
	}
	return mark, tx.Commit(ctx)
}

// Check is the guard of a transaction that the caller has begun; in the shared form if shared is set.
func (e *Engine[T]) Check(ctx context.Context, tx Conn, resource string, t fence.Token, shared bool) error {
	seen, err := e.store.lock(ctx, tx, resource, t, shared)
	if err != nil {
		return e.explain("check", resource, err)
	}
	if err := refuse(resource, t, seen.mark); err != nil {
		return err
	}
	mark, late, err := e.store.settle(ctx, tx, resource, t, seen, shared)
	if err != nil {
		return e.explain("check", resource, err)
	}
	if late {
		return fmt.Errorf("%s: check %q: %w: claim, and begin the transaction with the check",
			e.pkg, resource, Unclaimed.Of(e.pkg))
	}
	if err := refuse(resource, t, mark); err != nil {
		return err
	}
	if e.trail == nil || seen.mark == t {
		return nil
	}
	if err := e.trail.begin(ctx, tx, resource, t); err != nil {
		return e.explain("check", resource, err)
	}
	return nil
}

// refuse returns an error if t is older than the mark.
func refuse(resource string, t, mark fence.Token) error {
	if t < mark {
		return &fence.StaleError{Resource: resource, Token: t, Highest: mark}
	}
	return nil
}
