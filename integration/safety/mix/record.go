package mix

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// record is where events go: the tape of the run or, in a client's own process, standard output.
type record interface {
	Record(e history.Event)
	ID() int64
	Now() time.Duration
}

// tape writes the history of a run, one file for each round. The numbers that it gives out are unique in the run:
// clients' processes have their own ranges above them.
type tape struct {
	*history.Recorder

	dir   string
	tally *tally
	file  *os.File // of the present round
}

func newTape(dir string) *tape {
	return &tape{Recorder: history.NewRecorder(nil, history.NewClock(), 0), dir: dir, tally: newTally()}
}

// Record adds an event to the present file. Between two rounds events are counted and not written.
func (t *tape) Record(e history.Event) {
	if e.At == 0 {
		e.At = t.Now()
	}
	t.tally.add(e)
	t.Recorder.Record(e)
}

// begin starts the file of a round.
func (t *tape) begin(round int) (err error) {
	if t.file, err = os.Create(filepath.Join(t.dir, fmt.Sprintf("history-%05d.jsonl", round))); err != nil {
		return fmt.Errorf("mix: begin a history: %w", err)
	}
	t.To(t.file)
	return nil
}

// end closes the file and returns its path.
func (t *tape) end() (path string, err error) {
	err = t.Flush()
	t.To(nil)
	if err = errors.Join(err, t.file.Close()); err != nil {
		return "", fmt.Errorf("mix: write a history: %w", err)
	}
	return t.file.Name(), nil
}
