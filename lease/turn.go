package lease

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/leasefence/leasefence/internal/queue"
)

// contender is one place in the order of a name: first an acquisition, then the hold behind a [Lock].
type contender struct {
	lockOptions

	g      *grant
	name   string
	mark   string        // begins the suffix of the key: of a candidate, a permit
	shared bool          // a reader's: it has no turn in the session but its own place in etcd's queue
	try    bool          // it fails instead of waiting
	ahead  *contender    // the acquisition of the session that makes a try fail
	entry  queue.Guarded // zero until its turn in the session
	late   bool          // a request to enter may still arrive at the server, or a key that was given up may be there

	hooked *hooked // nil without hooks

	with []*contender // the other names of a set, see [Session.LockAll]: without turns in the session, and with c's life

	waiter *waiter // nil unless it waits for its turn in the session, or gave up while waiting

	life context.Context //nolint:containedctx // of the acquisition, and then of the handle
	end  context.CancelCauseFunc
}

// join puts an acquisition on a lease, and into the session's order of its name if its kind has one. It does not block.
func (c *contender) join(g *grant, m mode) {
	c.on(g)
	for _, name := range m.more {
		c.add(name, m.kind == KindTreeLock)
	}
	if m.kind == KindLock {
		c.ahead = g.turns.join(c)
	}
}

// on puts an acquisition that has not begun on a lease, with which it ends.
func (c *contender) on(g *grant) *contender {
	c.g = g
	c.entry.Ended = c.keyEnded
	c.life, c.end = context.WithCancelCause(g.handles)
	return c
}

// each calls f with c and the other names of its set.
func (c *contender) each(f func(*contender)) {
	f(c)
	for _, other := range c.with {
		f(other)
	}
}

func (c *contender) lost() *LostError { return lostBy(c.life) }

func lostBy(life context.Context) *LostError {
	lost, _ := context.Cause(life).(*LostError) //nolint:errorlint // the cause is ours and not wrapped
	return lost
}

// turns is the order of the acquisitions of one lease that want the same name. Only the first of each name stands in
// etcd's queue, or holds the lock; the others wait here, unseen by other processes. When a turn ends, the next
// acquisition gets a place at the end of etcd's queue, so other processes come in between.
type turns struct {
	mu    sync.Mutex              // guards the field below
	order map[string][]*contender // by name; it is the turn of the first
}

// place is the place in etcd's queue that an acquisition gets with its turn, if any.
type place struct {
	entry queue.Entry // zero: no place, it enters by itself
	ahead queue.Ahead
	late  bool // a request to enter may still arrive at the server
}

// waiter is the part of an acquisition that waits for its turn.
type waiter struct {
	turn    chan place  // of capacity 1: its turn has come, with this place
	settled atomic.Bool // its turn has come or it has given up, whichever came first
}

// join puts c at the end of its name's order. If c only tries and is not the first, c stays outside, and join returns the
// acquisition whose turn it is.
func (t *turns) join(c *contender) (ahead *contender) {
	t.mu.Lock()
	defer t.mu.Unlock()
	order := t.order[c.name]
	if len(order) > 0 {
		if c.try {
			return order[0]
		}
		c.waiter = &waiter{turn: make(chan place, 1)}
	}
	t.order[c.name] = append(order, c)
	return nil
}

// leave ends c's turn, if it has not ended before. It returns the acquisition whose turn is next, nil if none waits.
func (t *turns) leave(c *contender) (next *contender) {
	t.mu.Lock()
	defer t.mu.Unlock()
	order := t.order[c.name]
	switch {
	case len(order) == 0 || order[0] != c:
		return nil
	case len(order) == 1:
		delete(t.order, c.name)
		return nil
	}
	t.order[c.name] = slices.Delete(order, 0, 1)
	return order[0]
}

// quit takes c, which has given up before its turn, out of the order. If its turn has come meanwhile, c stays there,
// and give passes the turn on.
func (t *turns) quit(c *contender) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.order[c.name], c); i > 0 {
		t.order[c.name] = slices.Delete(t.order[c.name], i, i+1)
	}
}

// awaitTurn waits for c's turn and takes the place that comes with it.
func (c *contender) awaitTurn(ctx context.Context) ([]queue.Ahead, error) {
	c.hooked.queued("")
	select {
	case p := <-c.waiter.turn:
		return []queue.Ahead{c.takePlace(p)}, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-c.life.Done():
		return nil, context.Cause(c.life)
	}
}

// withdraw takes c out of the order before its turn. If its turn has come meanwhile, c takes the place instead, and
// withdraw reports false.
func (c *contender) withdraw() bool {
	if c.waiter.settled.CompareAndSwap(false, true) {
		c.g.turns.quit(c)
		return true
	}
	c.takePlace(<-c.waiter.turn) // give is about to send it
	return false
}

func (c *contender) takePlace(p place) queue.Ahead {
	c.waiter = nil
	c.entry.Entry, c.late = p.entry, p.late
	return p.ahead
}

// pass ends c's turn without a place to hand over.
func (c *contender) pass() { c.g.give(c.g.turns.leave(c), place{}) }

// inherit returns what next gets of c's place: all of it if c has one for certain and next has the same text for people,
// otherwise nothing, and c's key is deleted. A try that has failed may have left the queue again.
func (c *contender) inherit(next *contender) (*contender, place) {
	if next != nil && next.owner == c.owner && c.entry.Rev != 0 && !c.try {
		return next, place{entry: c.entry.Entry, late: c.late}
	}
	c.clear()
	return next, place{}
}

// give starts c's turn, with a place. If c has given up, the turn and the place go to the next.
func (g *grant) give(c *contender, p place) {
	for c != nil && !c.waiter.settled.CompareAndSwap(false, true) {
		c.entry.Entry, c.late = p.entry, p.late
		c, p = c.inherit(g.turns.leave(c))
	}
	if c != nil {
		c.waiter.turn <- p
	}
}
