//go:build unix

package stage

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/leasefence/leasefence/fence"
)

// Events of a process that attend observes.
const (
	HasStopped = "is stopped"
	GoesOn     = "goes on"
	HasEnded   = "has ended"
)

// Messages in the logs of processes, about an election or a lock.
const (
	Leads       = "leads"
	LeadsNoMore = "leads no more"
	Locks       = "has the lock"
	Unlocks     = "unlocks"
	IsRefused   = "is refused as stale"
	HasLost     = "has lost the lead"
	LockIsLost  = "lock is lost"
)

// Events of the ledger.
const (
	Accepts = "accepts"
	Refuses = "refuses"
)

// Event is a line of a process's log, a change of the state of a process, or a write that has reached the ledger.
type Event struct {
	When  time.Time
	Node  *Process // nil for the ledger
	What  string
	Token fence.Token
	More  map[string]any // all attributes of the log's line
}

// Is reports whether e is an event of a process.
func (e Event) Is(id, what string) bool { return e.Node != nil && e.Node.ID == id && e.What == what }

// begins reports whether the event begins the tenure of a leader or of a lock's holder.
func (e Event) begins() bool { return e.What == Leads || e.What == Locks }

// ends reports whether the event ends the tenure of its process, or stops the process.
func (e Event) ends() bool {
	return slices.Contains([]string{HasStopped, HasEnded, LeadsNoMore, Unlocks, LockIsLost}, e.What)
}

// record has all events, in the order in which they were added. It is safe for concurrent use.
type record struct {
	mu     sync.Mutex // guards the fields below
	events []Event
	grown  chan struct{} // closed when the next event is added
}

func newRecord() *record { return &record{grown: make(chan struct{})} }

func (r *record) add(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
	close(r.grown)
	r.grown = make(chan struct{})
}

// all returns a copy of the events so far.
func (r *record) all() []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// await returns the first event that matches, from a place in the record on. It waits for one until ctx ends.
func (r *record) await(ctx context.Context, from int, matches func(Event) bool) (Event, error) {
	for {
		r.mu.Lock()
		events, grown := r.events, r.grown
		r.mu.Unlock()
		for ; from < len(events); from++ {
			if matches(events[from]) {
				return events[from], nil
			}
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return Event{}, context.Cause(ctx)
		}
	}
}
