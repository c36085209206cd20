package sqlmark

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Claim raises the mark of a claimant in a separate transaction. It waits for transactions with older tokens that have
// locks on the marks, that of a [Reader] only for those of older writers. The resource then follows the lock of a
// [Mover].
func (e *Engine[D, T]) Claim(ctx context.Context, db D, resource string, c Claimant) error {
	c, err := e.admit(ctx, resource, c, e.lib.FitDB(db))
	if err != nil {
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
	c, err := e.admit(ctx, resource, c, e.lib.FitTx(tx))
	if err != nil {
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
			e.Package, verb(n.Claimant, "check"), n.resource, ErrUnclaimed, claim)
	case seen.has(n.Claimant):
		err = e.store.base().leave(ctx, tx, n.resource, seen)
	default:
		if refused, err = e.raise(ctx, tx, n.resource, n.Claimant, seen); refused != nil {
			return refused
		}
	}
	return e.explain(verb(n.Claimant, "check"), n.resource, err)
}

// part separates the nodes in the name of a tree's lock: the lock of the node a/b/c is a/~b/~c.
const part = "/~"

// node is a node of a path, and the claimant there: a writer at the path's end, and like a reader above.
type node struct {
	resource string
	Claimant
}

// nodes returns the nodes of a path, from its end to the root. The lock of a node above the end has one part less in its
// name for each level. Where no part remains, the name of that node's lock is unknown, and the token is not refused for
// that.
func (e *Engine[D, T]) nodes(ctx context.Context, path string, unfit error) ([]node, error) {
	c, err := e.admit(ctx, path, Writer, unfit)
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(path, "/") {
		return nil, fmt.Errorf("%s: path is %q, want one that does not begin with a slash", e.Package, path)
	}
	nodes := []node{{path, c}}
	for i := len(path) - 1; i > 0; i-- {
		if path[i] != '/' {
			continue
		}
		c.Read, c.Above = true, true
		c.Lock = above(c.Lock)
		c.Lax = c.Lax || c.Lock == ""
		nodes = append(nodes, node{path[:i], c})
	}
	return nodes, nil
}

// above is the name of the lock of the node above, or "".
func above(lock string) string {
	return lock[:max(strings.LastIndex(lock, part), 0)]
}

// ClaimPath claims one node after the other from the root, each in separate transactions. It never has locks on two
// nodes at the same time, so claims do not deadlock, and a claim that waits at a node delays nobody at the nodes above.
// It first looks at all nodes: a token that one of them refuses must not make a node above, which follows no lock yet,
// follow the token's. The nodes that have the token already need no claim.
func (e *Engine[D, T]) ClaimPath(ctx context.Context, db D, path string) error {
	nodes, err := e.nodes(ctx, path, e.lib.FitDB(db))
	if err != nil {
		return err
	}
	return e.tell(ctx, path, nodes[0].Claimant, e.claimPath(ctx, db, nodes))
}

func (e *Engine[D, T]) claimPath(ctx context.Context, db D, nodes []node) error {
	var lacking []node
	for _, n := range slices.Backward(nodes) {
		has, err := e.look(ctx, db, n)
		if err != nil {
			return err
		}
		if !has {
			lacking = append(lacking, n)
		}
	}
	for _, n := range lacking {
		if err := e.claim(ctx, db, n.resource, n.Claimant); err != nil {
			return err
		}
	}
	return nil
}

// look reports whether the marks of a node have the claimant, and returns an error if they refuse it.
func (e *Engine[D, T]) look(ctx context.Context, db D, n node) (has bool, err error) {
	err = e.retry(ctx, func() error {
		var seen markState
		err := e.within(ctx, db, func(tx Conn) (err error) {
			seen, err = e.store.base().see(ctx, tx, e.store.base().peek, n.resource)
			return err
		})
		if err != nil {
			return e.explain("claim path", n.resource, err)
		}
		has = seen.has(n.Claimant)
		return e.refused("claim path", n.resource, seen.withAnnounced(n.Claimant).Refuse(n.resource, n.Claimant), e.record(ctx, db))
	})
	return has, err
}

// CheckPath is the guard of the caller's own transaction. It raises no mark, so it never upgrades a lock, which could
// deadlock. It begins at the path's end, whose guard waits for transactions of the same token: their writes must be in
// the snapshot, and on SQLite that guard takes the write lock. All guards of a path lock the nodes in this order.
func (e *Engine[D, T]) CheckPath(ctx context.Context, tx T, path string) error {
	nodes, err := e.nodes(ctx, path, e.lib.FitTx(tx))
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if err = e.guard(ctx, e.lib.Conn(tx), n, false, false); err != nil {
			break
		}
	}
	return e.tell(ctx, path, nodes[0].Claimant, err)
}
