package fence

// ClaimPath is [Guard.Claim] for a node of a tree of resources, with the token of a lock on that node. It also fences
// earlier holders of the nodes above and below, and nobody on other branches. A path has a node at each slash and at
// its end: the nodes of "a/b/c" are "a", "a/b" and "a/b/c".
//
// On success t is the write mark of the path's end, and the read marks of the nodes above are at least t, as if t were
// a reader's there. t is refused if it is older than one of the two marks of the end, or than the write mark of a node
// above. On failure no mark is changed, and the error names the node. ClaimPath waits for functions that [Guard.Do]
// runs at any of the nodes.
func (g *Guard) ClaimPath(path string, t Token) error {
	b := bare(writer(t))
	if err := g.validate(path, b); err != nil {
		return err
	}
	err := g.claimPath(path, t)
	g.Hooks.Tell(b.ctx, b.access(path), err)
	return err
}

func (g *Guard) claimPath(path string, t Token) error {
	var nodes []*node
	for i := range len(path) + 1 {
		if i == len(path) || path[i] == '/' {
			b := bare(claimant{t, i < len(path)})
			b.above = b.read
			nodes = append(nodes, &node{g.find(path[:i]), path[:i], b})
		}
	}
	settled := true
	for _, n := range nodes {
		now := n.marks.Load()
		if err := now.refuse(n.resource, n.bid); err != nil {
			return err
		}
		settled = settled && now.has(n.bid)
	}
	if settled {
		return nil
	}
	takeAll(nodes)
	for _, n := range nodes {
		defer n.give()
	}
	for _, n := range nodes {
		if err := n.refuse(n.resource, n.bid); err != nil {
			return err
		}
	}
	for _, n := range nodes {
		n.lift(n.bid)
	}
	return nil
}

// takeAll waits until it has the turns of all nodes. It never waits for a turn while it has another: a function of Do at
// one node may use the others, and other branches do not wait for a claim that waits for a function.
func takeAll(nodes []*node) {
	for next := len(nodes) - 1; next >= 0; {
		next = takeAfter(nodes, next)
	}
}

// takeAfter waits for the turn of one node and takes the others if they are free. It returns -1, or gives all back and
// returns a node that was not free.
func takeAfter(nodes []*node, awaited int) (busy int) {
	nodes[awaited].await()
	for i := range nodes {
		if i == awaited || nodes[i].try() {
			continue
		}
		for j, n := range nodes {
			if j < i || j == awaited {
				n.give()
			}
		}
		return i
	}
	return -1
}

// CheckPath is [Guard.Check] for a node of a tree of resources. It does what [Guard.ClaimPath] does and has the same
// errors.
func (g *Guard) CheckPath(path string, t Token) error { return g.ClaimPath(path, t) }

// node is a node of a path, and the bid there: a writer's at the path's end, like a reader's above.
type node struct {
	*mark

	resource string
	bid
}
