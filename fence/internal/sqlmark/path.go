package sqlmark

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/leasefence/leasefence/fence"
)

// part separates the nodes in the name of a tree's lock: the lock of the node a/b/c is a/~b/~c.
const part = "/~"

// node is a node of a path, and the claimant there: a writer at the path's end, and like a reader above.
type node struct {
	resource string
	Claimant
}

// Path are the nodes of a path, from the root.
type Path []node

func (p Path) end() node { return p[len(p)-1] }

// AdmitPath is [Engine.Admit] for a path. The lock of a node above the end has one part less in its name for each
// level. Where no part remains, the name of that node's lock is unknown, and the token is not refused for that.
func (e *Engine[T]) AdmitPath(ctx context.Context, path string) (Path, error) {
	c, err := e.Admit(ctx, path)
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(path, "/") {
		return nil, fmt.Errorf("%s: path is %q, want one that does not begin with a slash", e.pkg, path)
	}
	nodes := Path{{path, c}}
	for i := len(path) - 1; i > 0; i-- {
		if path[i] != '/' {
			continue
		}
		c.read, c.above = true, true
		c.lock = above(c.lock)
		c.strict = c.lock != ""
		nodes = append(nodes, node{path[:i], c})
	}
	slices.Reverse(nodes)
	return nodes, nil
}

// above is the name of the lock of the node above, or "".
func above(lock string) string {
	return lock[:max(strings.LastIndex(lock, part), 0)]
}

// ClaimPath claims one node after the other from the root, each in separate transactions. It never has locks on two
// nodes at the same time, so claims do not deadlock, and a claim that waits at a node delays nobody at the nodes above.
// It first looks at all nodes, so that a token that is stale already is refused before anything is written.
func (e *Engine[T]) ClaimPath(ctx context.Context, db DB[T], nodes Path) error {
	return e.tell(ctx, nodes.end().resource, nodes.end().Claimant, e.claimPath(ctx, db, nodes))
}

func (e *Engine[T]) claimPath(ctx context.Context, db DB[T], nodes Path) error {
	settled := true
	for _, n := range nodes {
		has, err := e.look(ctx, db, n)
		if err != nil {
			return err
		}
		settled = settled && has
	}
	if settled {
		return nil
	}
	for _, n := range nodes {
		if err := e.claim(ctx, db, n.resource, n.Claimant); err != nil {
			return err
		}
	}
	return nil
}

// look reports whether the marks of a node have the claimant, or how they refuse it.
func (e *Engine[T]) look(ctx context.Context, db DB[T], n node) (has bool, err error) {
	err = e.retry(ctx, func() error {
		var seen markState
		err := within(ctx, db, func(tx T) (err error) {
			seen, err = e.store.peek(ctx, tx, n.resource)
			return err
		})
		if err != nil {
			return e.explain("claim path", n.resource, err)
		}
		has = seen.has(n.Claimant)
		refused := refuse(n.resource, n.Claimant, seen.highest(n.Claimant))
		return e.refused("claim path", n.resource, refused, func(stale *fence.StaleError) error {
			return within(ctx, db, func(tx T) error { return e.trail.stale(ctx, tx, stale) })
		})
	})
	return has, err
}

// CheckPath is the guard of the caller's own transaction. It raises no mark, so it never upgrades a lock, which could
// deadlock.
func (e *Engine[T]) CheckPath(ctx context.Context, tx Conn, nodes Path) error {
	return e.tell(ctx, nodes.end().resource, nodes.end().Claimant, e.checkPath(ctx, tx, nodes))
}

func (e *Engine[T]) checkPath(ctx context.Context, tx Conn, nodes Path) error {
	seen, late, err := e.store.lockPath(ctx, tx, nodes)
	if err != nil {
		return e.explain("check path", nodes.end().resource, err)
	}
	for i, n := range nodes {
		if err := refuse(n.resource, n.Claimant, seen[i].highest(n.Claimant)); err != nil {
			return err
		}
		late = late || !seen[i].has(n.Claimant)
	}
	if late {
		return fmt.Errorf("%s: check path %q: %w: claim the path, and begin the transaction with the check",
			e.pkg, nodes.end().resource, Unclaimed.Of(e.pkg))
	}
	return nil
}
