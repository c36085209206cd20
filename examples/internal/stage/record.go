//go:build unix

package stage

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/leasefence/leasefence/fence"
)

// What becomes of a process, besides what it logs itself.
const (
	HasStopped = "is stopped"
	GoesOn     = "goes on"
	HasEnded   = "has ended"
)

// What a process logs, as far as it matters here: of an election, and of a lock.
const (
	Leads       = "leads"
	LeadsNoMore = "leads no more"
	Locks       = "has the lock"
	Unlocks     = "unlocks"
	IsRefused   = "is refused as stale"
	HasLost     = "has lost the lead"
	LockIsLost  = "lock is lost"
)

// What the ledger does with a write.
const (
	Accepts = "accepts"
	Refuses = "refuses"
)

// Event is something that a process has logged, or that became of it, or of a write.
type Event struct {
	When  time.Time
	Node  *Process // nil: the ledger
	What  string
	Token fence.Token
	More  map[string]any // what else the log says
}

// Is reports whether e is an event of a process.
func (e Event) Is(id, what string) bool { return e.Node != nil && e.Node.ID == id && e.What == what }

// begins reports whether a tenure begins, of a leader or of a lock's holder.
func (e Event) begins() bool { return e.What == Leads || e.What == Locks }

// ends reports whether the tenure of its process is over, or that cannot do anything any more.
func (e Event) ends() bool {
	return slices.Contains([]string{HasStopped, HasEnded, LeadsNoMore, Unlocks, LockIsLost}, e.What)
}

// record is all that has happened. It is safe for concurrent use.
type record struct {
	mu     sync.Mutex // guards the fields below
	events []Event
	grown  chan struct{} // closed by the next event
}

func newRecord() *record { return &record{grown: make(chan struct{})} }

func (r *record) add(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
	close(r.grown)
	r.grown = make(chan struct{})
}

// all is a copy of the events so far.
func (r *record) all() []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// await waits for an event that matches, among those from a place on.
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
