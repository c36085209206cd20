package lease

import (
	"context"

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
