package lease

import (
	"container/list"
	"context"
	"fmt"

	"github.com/leasefence/leasefence/internal/etcd"
)

// healing is one attempt to replace a lost lease, for all acquisitions that wait for it. The session's mu guards its
// fields.
type healing struct {
	waiting list.List     // of func(*grant), in the order of arrival
	served  bool          // the functions in waiting were called with the new lease
	err     error         // why there is no new lease
	done    chan struct{} // closed at the end
}

// withLease puts c on the present lease or, if that is lost, on a new one. Acquisitions that wait for a new lease join it
// in the order of arrival, and before all later ones. On an error c has no lease.
func (s *Session) withLease(ctx context.Context, c *contender, m mode) error {
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
			c.join(g, m)
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
		place := h.waiting.PushBack(func(g *grant) { c.join(g, m) })
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
		case served: // whatever else has ended meanwhile
			return nil
		case err != nil:
			return err
		default:
			return fmt.Errorf("take a new lease: %w", failed)
		}
	}
}

// heal replaces a lost lease. It runs on the session's context, not on that of the caller that found the loss, since
// others wait for it too.
func (s *Session) heal(ctx context.Context) {
	s.mu.Lock()
	lost := s.grant
	s.mu.Unlock()
	var g *grant
	err := s.inVain.pause(ctx, lost)
	for err == nil && (g == nil || g.remaining() <= 0) { // the answer may come after the deadline
		g, err = s.takeLease(ctx)
	}
	s.endHealing(g, err)
}

// inVain counts the leases in a row that etcd granted and then did not know, before any lock was held on them. Only
// heal uses it.
type inVain struct {
	leases int
	etcd.Backoff
}

// pause waits before a lease is requested to replace g, from the second lease in vain on. Without that, a server that
// knows none of its leases would get a thousand requests a second.
func (v *inVain) pause(ctx context.Context, g *grant) error {
	if g.served.Load() || lostBy(g.handles).Reason != ReasonLeaseGone {
		*v = inVain{}
		return nil
	}
	if v.leases++; v.leases == 1 {
		return nil
	}
	return v.Sleep(ctx)
}

// endHealing gives the waiting callers the new lease, or the reason that there is none.
func (s *Session) endHealing(g *grant, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.healing
	s.healing = nil
	defer close(h.done)
	// A lease that is not used has no keys; it expires by itself.
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
		s.log.Info("new lease", "ttl", g.ttl)
	}
}
