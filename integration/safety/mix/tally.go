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
	mu           sync.Mutex // guards the fields below
	acquisitions int
	giveups      int
	losses       int
	writes       int // that the fenced resources applied
	refused      int // that they refused
	shared       int // tenures of readers
	sets         int // and of other kinds of locks
	trees        int
	permits      int
	staleReads   int // claims and reads of readers that were refused
	unknown      int // requests without an answer
	stalls       int
	longest      time.Duration // of the stalls
	pending      map[int64]history.Event
	holding      map[int64]history.Event
	ended        chan struct{} // closed and replaced when pending or holding change
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
		t.acquisitions++
		entered := t.pending[e.Op]
		switch {
		case entered.Verb.Shared():
			t.shared++
		case entered.Verb.OfSet():
			t.sets++
		case entered.Verb.OfTree():
			t.trees++
		case entered.Verb.OfPermit():
			t.permits++
		}
		e.Actor, e.Verb = entered.Actor, entered.Verb
		t.holding[e.Op] = e
		delete(t.pending, e.Op)
		t.wake()
	case history.GiveUp:
		t.giveups++
		delete(t.pending, e.Op)
		t.wake()
	case history.Lost:
		t.losses++
	case history.Release:
		delete(t.holding, e.Op)
		t.wake()
	case history.Apply:
		switch {
		case e.Verb.OfReader():
			if e.Outcome == history.Refused {
				t.staleReads++
			}
		case strings.HasSuffix(e.Name, history.UnfencedMark) || e.Verb == history.Read || e.Verb == history.Claim:
		case e.Outcome == history.OK:
			t.writes++
		case e.Outcome == history.Refused:
			t.refused++
		}
	case history.Answer:
		if e.Outcome == history.Unknown {
			t.unknown++
		}
	}
}

func (t *tally) wake() {
	close(t.ended)
	t.ended = make(chan struct{})
}

// stalled counts a pause of the whole process.
func (t *tally) stalled(gap time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stalls++
	t.longest = max(t.longest, gap)
}

// forget drops what an actor waits for and holds: its process is gone.
func (t *tally) forget(actor string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, ops := range []map[int64]history.Event{t.pending, t.holding} {
		maps.DeleteFunc(ops, func(_ int64, e history.Event) bool { return strings.HasPrefix(e.Actor, actor+"/") })
	}
	t.wake()
}

// held returns what actors whose names begin with prefix hold, in the order of the grants.
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

// waiting describes who waits for a grant.
func (t *tally) waiting() (waiters []string, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, op := range slices.Sorted(maps.Keys(t.pending)) {
		e := t.pending[op]
		waiters = append(waiters, fmt.Sprintf("op %d of %s for %s since %v", op, e.Actor, e.Name, e.At.Round(time.Millisecond)))
	}
	return waiters, t.ended
}

// counts is a copy of the counters.
func (t *tally) counts() Counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Counts{
		Acquisitions: t.acquisitions, GaveUp: t.giveups, Losses: t.losses,
		Writes: t.writes, Refused: t.refused, Unknown: t.unknown,
		Shared: t.shared, StaleReads: t.staleReads, Sets: t.sets, Trees: t.trees, Permits: t.permits,
		Stalls: t.stalls, LongestStall: t.longest,
	}
}
