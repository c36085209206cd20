package fence

// ClaimPath is [Guard.Claim] for a node of a tree of resources, with the token of a lock on that node. It also fences
// earlier holders of the nodes above and below, and nobody on other branches. A path has a node at each slash and at
// its end: the nodes of "a/b/c" are "a", "a/b" and "a/b/c".
//
// On success t is the write mark of the path's end, and the read marks of the nodes above are at least t, as if t were
// a reader's there. The error is a [*StaleError] that names the node if t is older than the write mark of a node, or
// than the read mark of the path's end. A refusal changes nothing, unless a newer token comes during the call: then some
// of the nodes may have been claimed. ClaimPath waits for functions that [Guard.Do] runs at any of the nodes of the path,
// and not for those at nodes below its end.
//
// Only ClaimPath and CheckPath look at the nodes above. [Guard.Do] and [Guard.Check] of a path's end do not: they accept
// the token of a holder that a claim of a node above has fenced. So hold a mutex of the resource during ClaimPath, and
// during CheckPath and the write after it.
func (g *Guard) ClaimPath(path string, t Token) error {
	b := bare(writer(t))
	err := g.validate(path, b)
	if err == nil {
		err = g.claimPath(path, t)
	}
	g.Hooks.Tell(b.ctx, b.access(path), err)
	return err
}

// claimPath has the turn of one node at a time: a function of Do at one node may use the others, and a claim that waits
// for a function delays no other branch. Marks that it has raised before a refusal harm nobody: the lock was granted to
// t, so those that they refuse had lost it before.
func (g *Guard) claimPath(path string, t Token) error {
	// each calls do for the nodes, with a bid that is like a reader's above the path's end, until do returns an error.
	each := func(do func(m *mark, resource string, b bid) error) error {
		for i := range len(path) + 1 {
			if i == len(path) || path[i] == '/' {
				b := bare(claimant{t, i < len(path)})
				b.above = b.read
				if err := do(g.find(path[:i]), path[:i], b); err != nil {
					return err
				}
			}
		}
		return nil
	}
	err := each((*mark).refuse) // a token that is stale already raises nothing
	if err == nil {
		err = each(func(m *mark, resource string, b bid) error {
			_, err := m.accept(resource, b, nil)
			return err
		})
	}
	if err != nil {
		return err
	}
	return each((*mark).refuse) // a newer holder may have come to one node while t waited at another
}

// CheckPath is [Guard.Check] for a node of a tree of resources. It does what [Guard.ClaimPath] does and has the same
// errors.
func (g *Guard) CheckPath(path string, t Token) error { return g.ClaimPath(path, t) }
