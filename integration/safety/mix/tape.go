package mix

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// record is where events go: the tape of the run or, in a client's own process, standard output.
type record interface {
	Record(e history.Event)
	ID() int64
	Now() time.Duration
}

// tape writes the history of a run, one file for each round. The numbers that it gives out are unique in the run:
// clients' processes have their own ranges above them. It also knows who waits and who holds.
type tape struct {
	*history.Recorder

	dir  string
	file *os.File // of the present round

	mu      sync.Mutex              // guards the fields below
	pending map[int64]history.Event // by Op: the Enter events of acquisitions that wait
	holding map[int64]history.Event // by Op: the Grant events of handles that are held, with the verbs of their Enter events
	changed chan struct{}           // closed and replaced when one of these becomes smaller or larger
}

func newTape(dir string) *tape {
	return &tape{
		Recorder: history.NewRecorder(nil, history.NewClock(), 0), dir: dir,
		pending: map[int64]history.Event{}, holding: map[int64]history.Event{}, changed: make(chan struct{}),
	}
}

func (t *tape) begin(tb testing.TB, round int) {
	tb.Helper()
	var err error
	t.file, err = os.Create(filepath.Join(t.dir, fmt.Sprintf("history-%05d.jsonl", round)))
	require.NoError(tb, err)
	require.NoError(tb, t.To(t.file))
}

func (t *tape) end(tb testing.TB) []history.Event {
	tb.Helper()
	require.NoError(tb, errors.Join(t.To(nil), t.file.Close()))
	all, err := history.ReadFile(t.file.Name())
	require.NoError(tb, err)
	return all
}

// Record adds an event to the present file. Between two rounds events are not written.
func (t *tape) Record(e history.Event) {
	if e.At == 0 {
		e.At = t.Now()
	}
	t.follow(e)
	t.Recorder.Record(e)
}

func (t *tape) follow(e history.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e.Kind {
	case history.Enter:
		t.pending[e.Op] = e
		return
	case history.Grant:
		e.Verb = t.pending[e.Op].Verb
		t.holding[e.Op] = e
	case history.GiveUp:
	case history.Release:
		delete(t.holding, e.Op)
	default:
		return
	}
	delete(t.pending, e.Op)
	t.wake()
}

func (t *tape) wake() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// forget drops what the actors of a client wait for and hold, since its process is gone.
func (t *tape) forget(client string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, ops := range []map[int64]history.Event{t.pending, t.holding} {
		maps.DeleteFunc(ops, func(_ int64, e history.Event) bool { return e.Client() == client })
	}
	t.wake()
}

// held returns the grants that a client's actors hold, or those of all clients, ordered by Op.
func (t *tape) held(client string) (held []history.Event, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, op := range slices.Sorted(maps.Keys(t.holding)) {
		if e := t.holding[op]; client == "" || e.Client() == client {
			held = append(held, e)
		}
	}
	return held, t.changed
}
