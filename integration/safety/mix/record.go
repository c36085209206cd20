package mix

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// record is where events go: the tape of the run or, in a process of its own, standard output.
type record interface {
	Record(e history.Event)
	ID() int64
	Now() time.Duration
}

// tape writes the history of a run, a part for each round.
type tape struct {
	clock history.Clock
	dir   string
	tally *tally
	ids   atomic.Int64

	mu   sync.RWMutex // guards the fields below; held for reading while an event is written
	part *history.Recorder
	file *os.File
}

func newTape(dir string) *tape {
	return &tape{clock: history.NewClock(), dir: dir, tally: newTally()}
}

// ID returns a number that is unique in the run. Processes have ranges of their own above the tape's.
func (t *tape) ID() int64 { return t.ids.Add(1) }

// Now is the time for an event that is recorded later.
func (t *tape) Now() time.Duration { return t.clock.Now() }

// Record adds an event to the present part. Between two parts there is nothing to record.
func (t *tape) Record(e history.Event) {
	if e.At == 0 {
		e.At = t.clock.Now()
	}
	t.tally.add(e)
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.part != nil {
		t.part.Record(e)
	}
}

// begin starts a part.
func (t *tape) begin(round int) error {
	f, err := os.Create(filepath.Join(t.dir, fmt.Sprintf("history-%05d.jsonl", round)))
	if err != nil {
		return fmt.Errorf("mix: begin a history: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.file, t.part = f, history.NewRecorder(f, t.clock, 0)
	return nil
}

// end closes the part, and returns its path and all that is in it.
func (t *tape) end() (path string, events []history.Event, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	path, err = t.file.Name(), errors.Join(t.part.Flush(), t.file.Close())
	t.part, t.file = nil, nil
	if err != nil {
		return path, nil, fmt.Errorf("mix: write a history: %w", err)
	}
	events, err = history.ReadFile(path)
	return path, events, err
}
