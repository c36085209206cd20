//go:build unix

package demo

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/leasefence/leasefence/fence"
)

// What becomes of a process, besides what it logs itself.
const (
	hasStopped = "is stopped"
	goesOn     = "goes on"
	hasEnded   = "has ended"
)

// What a process logs, as far as it matters here.
const (
	campaigns   = "campaigns"
	leads       = "leads"
	leadsNoMore = "leads no more"
	isRefused   = "is refused as stale"
	hasLost     = "has lost the lead"
)

// What the ledger does with a write.
const (
	accepts = "accepts"
	refuses = "refuses"
)

// event is something that a process has logged, or that became of it, or of a write.
type event struct {
	when  time.Time
	node  *process // nil: the ledger
	what  string
	token fence.Token
	more  map[string]any // what else the log says
}

// is reports whether e is an event of a process.
func (e event) is(id, what string) bool { return e.node != nil && e.node.id == id && e.what == what }

// record is all that has happened. It is safe for concurrent use.
type record struct {
	mu     sync.Mutex // guards the fields below
	events []event
	grown  chan struct{} // closed by the next event
}

func newRecord() *record { return &record{grown: make(chan struct{})} }

func (r *record) add(e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
	close(r.grown)
	r.grown = make(chan struct{})
}

func (r *record) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.events)
}

func (r *record) all() []event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// await waits for an event that matches, among those from a place on.
func (r *record) await(ctx context.Context, from int, matches func(event) bool) (event, error) {
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
			return event{}, context.Cause(ctx)
		}
	}
}
