package lease

import (
	"context"
	"fmt"
	"iter"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// State of a session's lease.
type State int

const (
	_ State = iota
	// Held means that the last renewal was acknowledged in time.
	Held
	// Jeopardy means that a renewal is overdue. Locks are still valid until the deadline; do not start new work
	// if you can help it.
	Jeopardy
	// Lost means that the lease is gone, or must be taken to be. Locks on it are dead for good; the next acquisition
	// takes a new lease.
	Lost
)

var states = [...]string{Held: "held", Jeopardy: "jeopardy", Lost: "lost"}

func (s State) String() string {
	if s <= 0 || int(s) >= len(states) {
		return fmt.Sprintf("State(%d)", int(s))
	}
	return states[s]
}

// Status of a session's present lease.
type Status struct {
	State    State
	LeaseID  clientv3.LeaseID
	TTL      time.Duration // as granted by the server
	Deadline time.Time     // local: when the lease is lost unless it is renewed before
	Err      error         // in Lost why, a [*LostError]; in Jeopardy the last failure to renew, if any
}

// Status tells the state of the session's present lease. It asks nobody, and may be called at any time.
func (s *Session) Status() Status {
	s.mu.Lock()
	g := s.grant
	s.mu.Unlock()
	return g.status()
}

// Remaining is what is left until the deadline of the session's present lease, 0 if that is lost. It is what the
// handles go by: where the host was suspended, that time counts too.
func (s *Session) Remaining() time.Duration {
	s.mu.Lock()
	g := s.grant
	s.mu.Unlock()
	if !g.checkDeadline() {
		return 0
	}
	return max(g.remaining(), 0)
}

// Changes yields the session's status, and again each time that its state or its lease changes, until ctx ends
// or the session is closed (the last one is then Lost). A consumer that is slow misses states in between but
// always gets the latest. It never holds up a renewal.
func (s *Session) Changes(ctx context.Context) iter.Seq[Status] {
	return func(yield func(Status) bool) {
		var last Status
		for {
			closed := s.isClosed()
			s.mu.Lock()
			g, changed := s.grant, s.changed
			s.mu.Unlock()
			status := g.status()
			if (status.State != last.State || status.LeaseID != last.LeaseID) && !yield(status) {
				return
			}
			last = status
			if closed {
				return
			}
			select {
			case <-changed:
			case <-s.closed:
			case <-ctx.Done():
				return
			}
		}
	}
}

func (s *Session) isClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// notify wakes those who wait for changes.
func (s *Session) notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notifyLocked()
}

// notifyLocked is notify under s.mu.
func (s *Session) notifyLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}
