package sqlmark

import (
	"context"
	"fmt"
)

// Claim raises the mark of a claimant in a separate transaction. It waits for transactions with older tokens that have
// locks on the marks, that of a [Reader] only for those of older writers. The resource then follows the lock of a
// [Mover].
func (e *Engine[D, T]) Claim(ctx context.Context, db D, resource string, c Claimant) error {
	c, err := e.admit(ctx, resource, c)
	if err != nil {
		return err
	}
	if err := e.lib.FitDB(db); err != nil {
		return err
	}
	return e.tell(ctx, resource, c, e.claim(ctx, db, resource, c))
}

func (e *Engine[D, T]) claim(ctx context.Context, db D, resource string, c Claimant) error {
	return e.retry(ctx, func() error { return e.claimOnce(ctx, db, resource, c) })
}

// claimOnce is one attempt of a claim. If the marks have the claimant already, the claim that raised them has waited
// for older transactions. Another write would wait for the transactions that share the mark.
func (e *Engine[D, T]) claimOnce(ctx context.Context, db D, resource string, c Claimant) error {
	var seen markState
	var refused error
	err := e.within(ctx, db, func(tx Conn) (err error) {
		if seen, err = e.store.base().see(ctx, tx, e.store.base().peek, resource); err != nil {
			return err
		}
		if refused = seen.withAnnounced(c).Refuse(resource, c); refused == nil && !seen.has(c) {
			err = e.store.announce(ctx, tx, resource, c, seen)
		}
		return err
	})
	if err == nil && refused == nil && !seen.has(c) {
		err = e.within(ctx, db, func(tx Conn) (err error) {
			refused, err = e.raise(ctx, tx, resource, c, seen)
			return err
		})
	}
	if err != nil {
		return e.explain(verb(c, "claim"), resource, err)
	}
	return e.refused("claim", resource, refused, e.record(ctx, db))
}

// raise raises the claimant's mark, unless the marks refuse it. In the same transaction it writes a writer's tenure to
// the audit trail.
func (e *Engine[D, T]) raise(ctx context.Context, tx Conn, resource string, c Claimant, seen markState) (refused, err error) {
	m, err := e.store.base().raise(ctx, tx, resource, c, seen.marks)
	if err != nil {
		return nil, err
	}
	if refused := m.Refuse(resource, c); refused != nil || e.trail == nil || c.Read {
		return refused, nil
	}
	return nil, e.trail.begin(ctx, tx, resource, c.Token)
}

// Check is the guard of the caller's own transaction, for a writer in the shared form if shared is set.
func (e *Engine[D, T]) Check(ctx context.Context, tx T, resource string, c Claimant, shared bool) error {
	c, err := e.admit(ctx, resource, c)
	if err != nil {
		return err
	}
	if err := e.lib.FitTx(tx); err != nil {
		return err
	}
	return e.tell(ctx, resource, c, e.guard(ctx, e.lib.Conn(tx), node{resource, c}, shared, true))
}

// guard is the guard of a transaction that cannot begin again, at one node. If the token would change the marks, guard
// raises them or returns ErrUnclaimed.
func (e *Engine[D, T]) guard(ctx context.Context, tx Conn, n node, shared, raises bool) error {
	seen, err := e.store.lock(ctx, tx, n.resource, n.Claimant, shared)
	if err != nil {
		return e.explain(verb(n.Claimant, "check"), n.resource, err)
	}
	if err := seen.withAnnounced(n.Claimant).Refuse(n.resource, n.Claimant); err != nil {
		return err
	}
	late, claim := !raises && !seen.has(n.Claimant), verb(n.Claimant, "claim")
	if !raises {
		claim = "claim the path"
	}
	if !late {
		if seen, late, err = e.store.settle(ctx, tx, n.resource, n.Claimant, seen); err != nil {
			return e.explain(verb(n.Claimant, "check"), n.resource, err)
		}
	}
	refused := seen.Refuse(n.resource, n.Claimant)
	switch {
	case refused != nil:
		return refused
	case late:
		return fmt.Errorf("%s: %s %q: %w: %s, and begin the transaction with the check",
			e.pkg, verb(n.Claimant, "check"), n.resource, ErrUnclaimed, claim)
	case seen.has(n.Claimant):
		err = e.store.base().leave(ctx, tx, n.resource, seen)
	default:
		if refused, err = e.raise(ctx, tx, n.resource, n.Claimant, seen); refused != nil {
			return refused
		}
	}
	return e.explain(verb(n.Claimant, "check"), n.resource, err)
}
