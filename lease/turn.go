package lease

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/leasefence/leasefence/internal/queue"
)

// turns is the order in which the acquisitions of one lease that want the same name have it. Only the first of each
// name stands in etcd's queue, or holds the lock; the others wait here, where nobody else sees them. Whoever's turn
// ends hands over to the next, who stands at the end of etcd's queue then: other processes come in between.
type turns struct {
	mu    sync.Mutex       // guards the field below, and the links of the locks
	first map[string]*Lock // of each name
}

// links make a ring of the acquisitions of one name.
type links struct{ next, prev *Lock }

// place is what an acquisition is given with its turn: a place in etcd's queue, or none.
type place struct {
	entry queue.Entry // zero: it takes a place by itself
	ahead queue.Ahead
	late  bool // a request to enter may still arrive at the server
}

// waiter is the part of an acquisition that waits for its turn.
type waiter struct {
	turn    chan struct{} // closed when it has come
	place   place         // set before that
	settled atomic.Bool   // its turn has come or it has given up, whichever was first
}

// join puts l at the end of its name's order. It reports whether l is the first, and with alone set that is the only
// place it takes.
func (t *turns) join(l *Lock, alone bool) (first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.first[l.name]
	switch {
	case f == nil:
		if t.first == nil {
			t.first = make(map[string]*Lock)
		}
		l.next, l.prev = l, l
		t.first[l.name] = l
		return true
	case alone:
		return false
	}
	l.waiter = &waiter{turn: make(chan struct{})}
	l.next, l.prev = f, f.prev
	l.prev.next, f.prev = l, l
	return false
}

// leave takes l out of the order. If its turn ends by that, it returns whose turn is next, nil if nobody waits.
func (t *turns) leave(l *Lock) (next *Lock) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.next == nil { // it has left before
		return nil
	}
	if t.first[l.name] == l {
		if next = l.next; next == l {
			next = nil
			delete(t.first, l.name)
		} else {
			t.first[l.name] = next
		}
	}
	l.unlink()
	return next
}

// quit takes l out of the order, which has given up before its turn. If that has come meanwhile, it is passed on, or
// has been already, by whoever gives it.
func (t *turns) quit(l *Lock) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.next != nil && t.first[l.name] != l {
		l.unlink()
	}
}

// unlink takes l out of its ring.
func (l *Lock) unlink() {
	l.next.prev, l.prev.next = l.prev, l.next
	l.next, l.prev = nil, nil
}

// whoever is the acquisition whose turn it is, nil if there is none.
func (t *turns) whoever(name string) *Lock {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.first[name]
}

// awaitTurn waits for l's turn and takes the place that comes with it.
func (l *Lock) awaitTurn(ctx context.Context) (queue.Ahead, error) {
	w := l.waiter
	select {
	case <-w.turn:
	case <-ctx.Done():
	case <-l.life.Done():
	}
	if w.settled.CompareAndSwap(false, true) {
		l.g.turns.quit(l)
		if ctx.Err() != nil {
			return queue.Ahead{}, context.Cause(ctx)
		}
		return queue.Ahead{}, context.Cause(l.life) //nolint:contextcheck // asks, passes nothing on
	}
	<-w.turn // it is being closed
	l.waiter = nil
	l.entry.Entry, l.late = w.place.entry, w.place.late
	return w.place.ahead, nil
}

// pass ends l's turn without a place to hand over.
func (l *Lock) pass() { l.g.give(l.g.turns.leave(l), place{}) }

// bequeath ends l's turn and leaves its place in etcd's queue, for which it has no use any more, to the next. A place
// that nobody takes is cleared.
func (l *Lock) bequeath() { l.g.give(l.inherit(l.g.turns.leave(l))) }

// inherit is what next gets of l's place: all of it if the key would say the same to people, or else nothing.
func (l *Lock) inherit(next *Lock) (*Lock, place) {
	if next != nil && next.owner == l.owner && (l.entry.Rev != 0 || l.late) {
		return next, place{entry: l.entry.Entry, late: l.late}
	}
	l.clear()
	return next, place{}
}

// give tells l that its turn has come. If l has given up, its turn and the place are for the next.
func (g *grant) give(l *Lock, p place) {
	for l != nil && !l.waiter.settled.CompareAndSwap(false, true) {
		l.entry.Entry, l.late = p.entry, p.late
		l, p = l.inherit(g.turns.leave(l))
	}
	if l != nil {
		l.waiter.place = p
		close(l.waiter.turn)
	}
}
