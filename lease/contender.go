package lease

import (
	"context"

	"github.com/leasefence/leasefence/internal/queue"
)

// contender is one place in the order of a name: an acquisition, and after it what a [Lock] holds.
type contender struct {
	g      *grant
	name   string
	owner  string        // the text in the key
	mark   string        // in the key, of a candidate in an election
	shared bool          // a reader's: it has no turn in the session, each stands in etcd's queue by itself
	entry  queue.Guarded // zero until its turn in the session
	late   bool          // a request to enter may still arrive at the server

	told *told // with hooks

	with []*contender // the other names of a set, see [Session.LockAll]: they have no turns in the session, and c's life

	links          // in its name's order, under g.turns.mu
	waiter *waiter // while it waits for its turn in the session, or if it gave up then

	life context.Context //nolint:containedctx // of the acquisition, and then of the handle
	end  context.CancelCauseFunc
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
