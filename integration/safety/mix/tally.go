package mix

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// tally counts events as they are recorded.
type tally struct {
	mu      sync.Mutex              // guards the fields below
	sums    Counts                  // only the counts of events
	pending map[int64]history.Event // by Op: the Enter events of acquisitions that wait
	holding map[int64]history.Event // by Op: the Grant events of handles that are held
	ended   chan struct{}           // closed and replaced when a grant, a failure or a release is added
}

func newTally() *tally {
	return &tally{
		pending: map[int64]history.Event{}, holding: map[int64]history.Event{}, ended: make(chan struct{}),
	}
}

func (t *tally) add(e history.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e.Kind {
	case history.Enter:
		t.pending[e.Op] = e
	case history.Grant:
		t.sums.Acquisitions++
		entered := t.pending[e.Op]
		switch {
		case entered.Verb.Shared():
			t.sums.Shared++
		case entered.Verb.OfSet():
			t.sums.Sets++
		case entered.Verb.OfTree():
			t.sums.Trees++
		case entered.Verb.OfPermit():
			t.sums.Permits++
		}
		e.Actor, e.Verb = entered.Actor, entered.Verb
		t.holding[e.Op] = e
		delete(t.pending, e.Op)
		t.wake()
	case history.GiveUp:
		t.sums.GaveUp++
		delete(t.pending, e.Op)
		t.wake()
	case history.Release:
		delete(t.holding, e.Op)
		t.wake()
	case history.Apply:
		switch {
		case e.Verb.OfReader():
			if e.Outcome == history.Refused {
				t.sums.StaleReads++
			}
		case strings.HasSuffix(e.Name, history.UnfencedMark) || e.Verb == history.Read || e.Verb == history.Claim:
		case e.Outcome == history.OK:
			t.sums.Writes++
		case e.Outcome == history.Refused:
			t.sums.Refused++
		}
	case history.Answer:
		if e.Outcome == history.Unknown {
			t.sums.Unknown++
		}
	}
}

// wake wakes the callers of held and waiting.
func (t *tally) wake() {
	close(t.ended)
	t.ended = make(chan struct{})
}

// stalled counts a time in which the whole process did not run.
func (t *tally) stalled(gap time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sums.Stalls++
	t.sums.LongestStall = max(t.sums.LongestStall, gap)
}

// forget drops what the actors of a client wait for and hold, since its process is gone.
func (t *tally) forget(client string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, ops := range []map[int64]history.Event{t.pending, t.holding} {
		maps.DeleteFunc(ops, func(_ int64, e history.Event) bool { return strings.HasPrefix(e.Actor, client+"/") })
	}
	t.wake()
}

// held returns the grants that actors with that prefix in their names hold, ordered by Op.
func (t *tally) held(prefix string) (held []history.Event, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, op := range slices.Sorted(maps.Keys(t.holding)) {
		if e := t.holding[op]; strings.HasPrefix(e.Actor, prefix) {
			held = append(held, e)
		}
	}
	return held, t.ended
}

// waiting describes the acquisitions that wait.
func (t *tally) waiting() (waiters []string, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, op := range slices.Sorted(maps.Keys(t.pending)) {
		e := t.pending[op]
		waiters = append(waiters, fmt.Sprintf("op %d of %s for %s since %v", op, e.Actor, e.Name, e.At.Round(time.Millisecond)))
	}
	return waiters, t.ended
}

// counts returns a copy of the sums.
func (t *tally) counts() Counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sums
}
