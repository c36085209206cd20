package sqlmark

import (
	"context"
	"fmt"

	"github.com/leasefence/leasefence/fence"
)

// Claim raises the write mark to t in a separate transaction, and waits for transactions with older tokens that have locks on
// the marks.
func (e *Engine[T]) Claim(ctx context.Context, db DB[T], resource string, t fence.Token) error {
	return e.claim(ctx, db, resource, writer(t))
}

// ClaimRead raises the read mark to r if it is lower, and waits for transactions of older writers.
func (e *Engine[T]) ClaimRead(ctx context.Context, db DB[T], resource string, r fence.ReadToken) error {
	return e.claim(ctx, db, resource, reader(r))
}

func (e *Engine[T]) claim(ctx context.Context, db DB[T], resource string, c claimant) error {
	return e.retry(ctx, func() error {
		// If the claimant's mark is as high already, the claim that raised it has waited for older transactions. Another write
		// would wait for the transactions that share the mark.
		var known marks
		var behind bool
		err := within(ctx, db, func(tx T) error {
			seen, err := e.store.peek(ctx, tx, resource)
			known = seen.highest()
			behind = seen.of(c) < c.Token && refuse(resource, c, known) == nil
			if err == nil && behind {
				err = e.store.announce(ctx, tx, resource, c)
			}
			return err
		})
		if err == nil && behind {
			known, err = e.raise(ctx, db, resource, c)
		}
		if err != nil {
			return e.explain(c.verb("claim"), resource, err)
		}
		return e.refused("claim", resource, refuse(resource, c, known), func(stale *fence.StaleError) error {
			return within(ctx, db, func(tx T) error { return e.trail.stale(ctx, tx, stale) })
		})
	})
}

// raise raises the claimant's mark, a writer's in one transaction with the rows of the audit trail.
func (e *Engine[T]) raise(ctx context.Context, db DB[T], resource string, c claimant) (m marks, err error) {
	err = within(ctx, db, func(tx T) error {
		m, err = e.store.raise(ctx, tx, resource, c)
		if err != nil || refuse(resource, c, m) != nil || e.trail == nil || c.read {
			return err
		}
		return e.trail.begin(ctx, tx, resource, c.Token)
	})
	return m, err
}

// CheckRead is the guard of a reader's transaction, which is the caller's.
func (e *Engine[T]) CheckRead(ctx context.Context, tx Conn, resource string, r fence.ReadToken) error {
	c := reader(r)
	seen, late, err := e.store.lockRead(ctx, tx, resource, c)
	if err != nil {
		return e.explain(c.verb("check"), resource, err)
	}
	if err := refuse(resource, c, seen.highest()); err != nil {
		return err
	}
	if late {
		return e.unclaimed(c, resource)
	}
	return nil
}

func (e *Engine[T]) unclaimed(c claimant, resource string) error {
	return fmt.Errorf("%s: %s %q: %w: %s, and begin the transaction with the check",
		e.pkg, c.verb("check"), resource, Unclaimed.Of(e.pkg), c.verb("claim"))
}

// Check is the guard of the caller's transaction, in the shared form if shared is set.
func (e *Engine[T]) Check(ctx context.Context, tx Conn, resource string, t fence.Token, shared bool) error {
	seen, err := e.store.lock(ctx, tx, resource, t, shared)
	if err != nil {
		return e.explain("check", resource, err)
	}
	if err := refuse(resource, writer(t), seen.highest()); err != nil {
		return err
	}
	m, late, err := e.store.settle(ctx, tx, resource, t, seen, shared)
	if err != nil {
		return e.explain("check", resource, err)
	}
	if late {
		return e.unclaimed(writer(t), resource)
	}
	if err := refuse(resource, writer(t), m); err != nil {
		return err
	}
	if e.trail == nil || seen.write == t {
		return nil
	}
	if err := e.trail.begin(ctx, tx, resource, t); err != nil {
		return e.explain("check", resource, err)
	}
	return nil
}
