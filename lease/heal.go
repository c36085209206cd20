package lease

import (
	"container/list"
	"context"
	"fmt"

	"github.com/leasefence/leasefence/internal/etcd"
)

// healing is one attempt to replace a lost lease, on behalf of all who wait for it. The session's mu guards its fields.
type healing struct {
	waiting list.List     // of func(*grant), in the order in which they came
	served  bool          // they were called with the new lease
	err     error         // or why there is none
	done    chan struct{} // closed at the end
}

// withLease puts c on the present lease, or on a new one if that is lost, and calls join, which takes a place in a line and
// does not block. While a new lease is asked for, acquisitions wait here, and join in the order in which they came, before all
// that come later. On an error c has no lease, and join was not called.
func (s *Session) withLease(ctx context.Context, c *contender, join func(*contender)) error {
	for {
		s.mu.Lock()
		g := s.grant
		s.mu.Unlock()
		alive := g.checkDeadline()

		s.mu.Lock()
		switch {
		case s.closing:
			s.mu.Unlock()
			return ErrClosed
		case s.restored != nil:
			defer s.mu.Unlock()
			return s.restored
		case alive:
			s.mu.Unlock()
			join(c.on(g))
			return nil
		case s.grant != g:
			s.mu.Unlock()
			continue
		}
		if s.healing == nil {
			s.healing = &healing{done: make(chan struct{})}
			s.goLocked(s.heal)
		}
		h := s.healing
		place := h.waiting.PushBack(func(g *grant) { join(c.on(g)) })
		s.mu.Unlock()

		var err error
		select {
		case <-h.done:
		case <-s.ending:
			err = ErrClosed
		case <-ctx.Done():
			err = fmt.Errorf("take a new lease: %w", s.conn.Ended(ctx, context.Cause(ctx)))
		}

		s.mu.Lock()
		h.waiting.Remove(place)
		served, failed := h.served, h.err
		s.mu.Unlock()
		switch {
		case served: // whatever has ended meanwhile
			return nil
		case err != nil:
			return err
		default:
			return fmt.Errorf("take a new lease: %w", failed)
		}
	}
}

// heal replaces a lost lease. It belongs to the session, not to the caller that found the loss: others wait too.
func (s *Session) heal(ctx context.Context) {
	s.mu.Lock()
	lost := s.grant
	s.mu.Unlock()
	if err := s.inVain.pause(ctx, lost); err != nil {
		s.endHealing(nil, err)
		return
	}
	g, err := s.takeLease(ctx)
	for err == nil && g.remaining() <= 0 { // lost before it was known
		g, err = s.takeLease(ctx)
	}
	if s.endHealing(g, err) {
		g.log.Info("new lease", "ttl", g.ttl)
	}
}

// inVain counts the leases in a row that etcd granted and then did not know, before any lock was held on them. Its user is heal,
// which runs once at a time.
type inVain struct {
	leases int
	etcd.Backoff
}

// pause waits before a lease in the place of g is asked for, from the second in vain on: a server that knows none of them would
// be asked for a thousand a second.
func (v *inVain) pause(ctx context.Context, g *grant) error {
	if lost := lostBy(g.handles); g.served.Load() || lost == nil || lost.Reason != ReasonLeaseGone { //nolint:contextcheck // asks, passes nothing on
		*v = inVain{}
		return nil
	}
	if v.leases++; v.leases == 1 {
		return nil
	}
	return v.Sleep(ctx)
}

// endHealing gives those who wait the new lease, or why there is none, and reports whether it was given.
func (s *Session) endHealing(g *grant, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.healing
	s.healing = nil
	defer close(h.done)
	// On a lease that is not taken nothing stands; it expires by itself.
	switch {
	case err != nil:
		h.err = err
	case s.closing:
		h.err = ErrClosed
	case s.restored != nil:
		h.err = s.restored
	default:
		s.startLocked(g)
		for w := h.waiting.Front(); w != nil; w = w.Next() {
			w.Value.(func(*grant))(g)
		}
		h.served = true
	}
	return h.served
}
