package lease

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// State is the state of a session's lease.
type State int

const (
	_ State = iota
	// StateHeld means that the last renewal was acknowledged in time.
	StateHeld
	// StateJeopardy means that a renewal is overdue. Locks are still valid until the deadline; avoid starting new work.
	StateJeopardy
	// StateLost means that the lease is gone, or must be assumed to be. Locks on it have ended; the next acquisition
	// takes a new lease.
	StateLost
)

var states = []string{StateHeld: "held", StateJeopardy: "jeopardy", StateLost: "lost"}

func (s State) String() string { return nameOf("State", int(s), states) }

// nameOf returns the name of a constant, or for a number without one a text like "State(7)".
func nameOf(kind string, n int, names []string) string {
	if n < 0 || n >= len(names) || names[n] == "" {
		return fmt.Sprintf("%s(%d)", kind, n)
	}
	return names[n]
}

// Status is the status of a session's present lease.
type Status struct {
	State    State
	LeaseID  clientv3.LeaseID
	TTL      time.Duration // as granted by the server
	Deadline time.Time     // local: when the lease is lost unless it is renewed
	Err      error         // in StateLost a [*LostError]; in StateJeopardy the last failure to renew, if any
}

// MarshalText returns the state's name.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalJSON returns the status for people and dashboards: the lease's ID in hex as in etcdctl, durations as text.
func (s Status) MarshalJSON() ([]byte, error) {
	view := struct {
		State    State     `json:"state"`
		LeaseID  string    `json:"lease"`
		TTL      string    `json:"ttl"`
		Deadline time.Time `json:"deadline,omitzero"`
		Err      string    `json:"error,omitempty"`
	}{s.State, strconv.FormatInt(int64(s.LeaseID), 16), s.TTL.String(), s.Deadline, ""}
	if s.Err != nil {
		view.Err = s.Err.Error()
	}
	return json.Marshal(view)
}

// Status returns the status of the session's present lease. It sends nothing, and may be called at any time.
func (s *Session) Status() Status {
	s.mu.Lock()
	g := s.grant
	s.mu.Unlock()
	return g.status()
}

// Changes yields the session's status, and again each time that its state or its lease changes, until ctx ends or the
// session is closed (the last status has StateLost). A slow consumer misses states in between but always gets the
// latest. It never delays a renewal.
func (s *Session) Changes(ctx context.Context) iter.Seq[Status] {
	return func(yield func(Status) bool) {
		var last Status
		for closed := false; ; {
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
				closed = true // and look once more
			case <-ctx.Done():
				return
			}
		}
	}
}

// notify wakes Changes, and calls StateChanged in the background.
func (s *Session) notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notifyLocked()
}

// notifyLocked is notify under s.mu.
func (s *Session) notifyLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
	if h := s.opts.Hooks; h != nil && h.StateChanged != nil && !s.reporting.Swap(true) {
		s.states.Add(s.reportState)
	}
}
