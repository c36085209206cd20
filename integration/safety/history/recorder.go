package history

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Clock counts from the beginning of a run, which is its value. It reads CLOCK_MONOTONIC, so all processes of the host
// can use the same Clock.
type Clock time.Duration

// NewClock returns a clock of a run that begins now.
func NewClock() Clock { return Clock(monotonic()) }

// Now returns the time since the beginning of the run.
func (c Clock) Now() time.Duration { return monotonic() - time.Duration(c) }

// monotonic reads the clock that all processes of the host share. Go's monotonic times have no meaning in other
// processes.
func monotonic() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // it cannot fail: the clock is there, the pointer valid
	return time.Duration(ts.Nano())
}

// Recorder writes a history. It is safe for concurrent use.
type Recorder struct {
	Clock Clock
	// Seen, if set, is called with each event, also with those that are dropped.
	Seen func(Event)

	ids atomic.Int64
	mu  sync.Mutex // guards the fields below
	out io.Writer  // nil: events are dropped
	err error      // the first of out
}

// NewRecorder returns a recorder that writes to w, see [Recorder.To]. The numbers of [Recorder.ID] begin above first:
// each process of a run has a range of its own.
func NewRecorder(w io.Writer, clock Clock, first int64) *Recorder {
	r := &Recorder{Clock: clock, out: w}
	r.ids.Store(first)
	return r
}

// To makes the recorder write to w from now on. If w is nil, events are dropped. To returns the first error of the
// writer before.
func (r *Recorder) To(w io.Writer) (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	err = r.err
	r.out, r.err = w, nil
	return err
}

// ID returns a new number for an Op, a Request or a Fault.
func (r *Recorder) ID() int64 { return r.ids.Add(1) }

// Now returns the present time, for the At of an event that is recorded later.
func (r *Recorder) Now() time.Duration { return r.Clock.Now() }

// Record writes an event at once, so that little is lost when the process is killed. If the event's At is 0, Record
// sets it to the present time.
func (r *Recorder) Record(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.At == 0 {
		e.At = r.Clock.Now()
	}
	if r.Seen != nil {
		r.Seen(e)
	}
	if r.out != nil && r.err == nil {
		r.err = json.NewEncoder(r.out).Encode(e)
	}
}

// Scan yields the events of a history one by one, and stops at the first error. It skips an incomplete last line, which
// a killed process may leave.
func Scan(src io.Reader) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		dec := json.NewDecoder(src)
		dec.DisallowUnknownFields()
		for n := 1; ; n++ {
			var e Event
			err := dec.Decode(&e)
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return
			}
			if err != nil {
				yield(Event{}, fmt.Errorf("history: event %d: %w", n, err))
				return
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

// ReadFile returns all events of the history in a file, none if there is an error.
func ReadFile(path string) (all []Event, err error) {
	f, err := os.Open(filepath.Clean(path))
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for e, err := range Scan(f) {
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}
