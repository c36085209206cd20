package lease

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/leasefence/leasefence/internal/queue"
)

// turns is the order of the acquisitions of one lease that want the same name. Only the first of each name stands in
// etcd's queue, or holds the lock; the others wait here, unseen by other processes. When a turn ends, the next
// acquisition gets a place at the end of etcd's queue, so other processes come in between.
type turns struct {
	mu    sync.Mutex            // guards the field below, and the links of the contenders
	first map[string]*contender // by name
}

// links make a ring of the acquisitions of one name.
type links struct{ next, prev *contender }

// place is the place in etcd's queue that an acquisition gets with its turn, if any.
type place struct {
	entry queue.Entry // zero: no place, it enters by itself
	ahead queue.Ahead
	late  bool // a request to enter may still arrive at the server
}

// waiter is the part of an acquisition that waits for its turn.
type waiter struct {
	turn    chan struct{} // closed when its turn has come
	place   place         // set before turn is closed
	settled atomic.Bool   // its turn has come or it has given up, whichever came first
}

// join puts c at the end of its name's order. It returns the acquisition whose turn it is, nil if that is c. With alone
// set, c joins only if it is the first.
func (t *turns) join(c *contender, alone bool) (first *contender) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.first[c.name]
	switch {
	case f == nil:
		c.next, c.prev = c, c
		t.first[c.name] = c
		return nil
	case alone:
		return f
	}
	c.waiter = &waiter{turn: make(chan struct{})}
	c.next, c.prev = f, f.prev
	c.prev.next, f.prev = c, c
	return f
}

// leave takes c out of the order. If that ends c's turn, it returns the acquisition whose turn is next, nil if none
// waits.
func (t *turns) leave(c *contender) (next *contender) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.next == nil { // it has already left
		return nil
	}
	if t.first[c.name] == c {
		if next = c.next; next == c {
			next = nil
			delete(t.first, c.name)
		} else {
			t.first[c.name] = next
		}
	}
	c.unlink()
	return next
}

// quit takes c, which has given up before its turn, out of the order. If its turn has come meanwhile, c stays there,
// and give passes the turn on.
func (t *turns) quit(c *contender) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.next != nil && t.first[c.name] != c {
		c.unlink()
	}
}

func (c *contender) unlink() {
	c.next.prev, c.prev.next = c.prev, c.next
	c.next, c.prev = nil, nil
}

// awaitTurn waits for c's turn and takes the place that comes with it.
func (c *contender) awaitTurn(ctx context.Context) ([]queue.Ahead, error) {
	c.hooked.queued("")
	select {
	case <-c.waiter.turn:
		return []queue.Ahead{c.takePlace()}, nil
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
	<-c.waiter.turn // give is about to close it
	c.takePlace()
	return false
}

func (c *contender) takePlace() queue.Ahead {
	p := c.waiter.place
	c.waiter = nil
	c.entry.Entry, c.late = p.entry, p.late
	return p.ahead
}

// pass ends c's turn without a place to hand over.
func (c *contender) pass() { c.g.give(c.g.turns.leave(c), place{}) }

// passOn ends c's turn and hands c's place in etcd's queue, which c does not need any more, to the next acquisition. If
// nobody takes the place, its key is deleted.
func (c *contender) passOn() { c.g.give(c.inherit(c.g.turns.leave(c))) }

// inherit returns what next gets of c's place: all of it if next has the same text for people, otherwise nothing, and
// c's key is deleted.
func (c *contender) inherit(next *contender) (*contender, place) {
	if next != nil && next.owner == c.owner && (c.entry.Rev != 0 || c.late) {
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
		c.waiter.place = p
		close(c.waiter.turn)
	}
}
