package sqlmark

import (
	"context"
	"fmt"

	"github.com/leasefence/leasefence/fence"
)

// Claim raises the mark to t in a separate transaction, and waits for transactions with older tokens that have locks on it.
func (e *Engine[T]) Claim(ctx context.Context, db DB[T], resource string, t fence.Token) error {
	return e.retry(ctx, func() error {
		// If the mark is t already, the claim that raised it has waited for older transactions. Another write would wait for
		// the transactions that share the mark.
		var mark fence.Token
		var behind bool
		err := within(ctx, db, func(tx T) error {
			seen, err := e.store.peek(ctx, tx, resource)
			mark, behind = seen.highest(), seen.mark < t && seen.announced <= t
			if err == nil && behind {
				err = e.store.announce(ctx, tx, resource, t)
			}
			return err
		})
		if err == nil && behind {
			mark, err = e.raise(ctx, db, resource, t)
		}
		if err != nil {
			return e.explain("claim", resource, err)
		}
		return e.refused("claim", resource, refuse(resource, t, mark), func(stale *fence.StaleError) error {
			return within(ctx, db, func(tx T) error { return e.trail.stale(ctx, tx, stale) })
		})
	})
}

// raise raises the mark, in one transaction with the rows of the audit trail.
func (e *Engine[T]) raise(ctx context.Context, db DB[T], resource string, t fence.Token) (mark fence.Token, err error) {
	err = within(ctx, db, func(tx T) error {
		if mark, err = e.store.raise(ctx, tx, resource, t); err != nil || mark != t || e.trail == nil {
			return err
		}
		return e.trail.begin(ctx, tx, resource, t)
	})
	return mark, err
}

// Check is the guard of the caller's transaction, in the shared form if shared is set.
func (e *Engine[T]) Check(ctx context.Context, tx Conn, resource string, t fence.Token, shared bool) error {
	seen, err := e.store.lock(ctx, tx, resource, t, shared)
	if err != nil {
		return e.explain("check", resource, err)
	}
	if err := refuse(resource, t, seen.highest()); err != nil {
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
