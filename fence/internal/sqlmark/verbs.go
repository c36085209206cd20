package sqlmark

import (
	"context"
	"fmt"

	"github.com/leasefence/leasefence/fence"
)

// Claim raises the claimant's mark in a separate transaction. It waits for transactions with older tokens that have
// locks on the marks; a reader's claim waits only for those of older writers.
func (e *Engine[T]) Claim(ctx context.Context, db DB[T], resource string, c Claimant) error {
	return e.tell(ctx, resource, c, e.claim(ctx, db, resource, c))
}

func (e *Engine[T]) claim(ctx context.Context, db DB[T], resource string, c Claimant) error {
	return e.retry(ctx, func() error { return e.claimOnce(ctx, db, resource, c) })
}

// claimOnce is one attempt of a claim. If the marks have the claimant already, the claim that raised them has waited
// for older transactions. Another write would wait for the transactions that share the mark.
func (e *Engine[T]) claimOnce(ctx context.Context, db DB[T], resource string, c Claimant) error {
	var known marks
	var behind bool
	err := within(ctx, db, func(tx T) error {
		seen, err := e.store.peek(ctx, tx, resource)
		known = seen.highest(c)
		behind = !seen.has(c) && refuse(resource, c, known) == nil
		if err == nil && behind {
			announced := c
			announced.lock = seen.lifted(c).lock
			err = e.store.announce(ctx, tx, resource, announced)
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
}

// raise raises the claimant's mark. In the same transaction it writes a writer's tenure to the audit trail.
func (e *Engine[T]) raise(ctx context.Context, db DB[T], resource string, c Claimant) (m marks, err error) {
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
func (e *Engine[T]) CheckRead(ctx context.Context, tx Conn, resource string, c Claimant) error {
	return e.tell(ctx, resource, c, e.checkRead(ctx, tx, resource, c))
}

func (e *Engine[T]) checkRead(ctx context.Context, tx Conn, resource string, c Claimant) error {
	seen, late, err := e.store.lockRead(ctx, tx, resource, c)
	if err != nil {
		return e.explain(c.verb("check"), resource, err)
	}
	if err := refuse(resource, c, seen.highest(c)); err != nil {
		return err
	}
	if late {
		return e.unclaimed(c, resource)
	}
	return nil
}

func (e *Engine[T]) unclaimed(c Claimant, resource string) error {
	return fmt.Errorf("%s: %s %q: %w: %s, and begin the transaction with the check",
		e.pkg, c.verb("check"), resource, Unclaimed.Of(e.pkg), c.verb("claim"))
}

// Check is the guard of the caller's transaction, in the shared form if shared is set.
func (e *Engine[T]) Check(ctx context.Context, tx Conn, resource string, c Claimant, shared bool) error {
	return e.tell(ctx, resource, c, e.check(ctx, tx, resource, c, shared))
}

func (e *Engine[T]) check(ctx context.Context, tx Conn, resource string, c Claimant, shared bool) error {
	seen, err := e.store.lock(ctx, tx, resource, c, shared)
	if err != nil {
		return e.explain("check", resource, err)
	}
	if err := refuse(resource, c, seen.highest(c)); err != nil {
		return err
	}
	m, late, err := e.store.settle(ctx, tx, resource, c, seen, shared)
	if err != nil {
		return e.explain("check", resource, err)
	}
	if late {
		return e.unclaimed(c, resource)
	}
	if err := refuse(resource, c, m); err != nil {
		return err
	}
	if e.trail == nil || seen.write == c.Token {
		return nil
	}
	if err := e.trail.begin(ctx, tx, resource, c.Token); err != nil {
		return e.explain("check", resource, err)
	}
	return nil
}
