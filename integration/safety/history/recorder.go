package history

import (
	"bufio"
	"encoding/json"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Clock counts from the beginning of a run, which is its value, by CLOCK_MONOTONIC: all processes of the host can have the same one.
type Clock time.Duration

// NewClock begins a run now.
func NewClock() Clock { return Clock(monotonic()) }

// Now is the time since the beginning of the run.
func (c Clock) Now() time.Duration { return monotonic() - time.Duration(c) }

// monotonic reads the clock that all processes of the host share: Go's own reading cannot leave the process.
func monotonic() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // it cannot fail: the clock is there, the pointer valid
	return time.Duration(ts.Nano())
}

// Recorder writes a history. It is safe for concurrent use.
type Recorder struct {
	Clock Clock

	ids atomic.Int64
	mu  sync.Mutex    // guards what follows
	out *bufio.Writer // nil: what is recorded is dropped
	err error
}

// NewRecorder writes to w, as [Recorder.To]. Numbers given out by [Recorder.ID] begin above first: each process of a run has its
// own range.
func NewRecorder(w io.Writer, clock Clock, first int64) *Recorder {
	r := &Recorder{Clock: clock}
	r.ids.Store(first)
	r.To(w)
	return r
}

// To makes the recorder write to w from now on; nil drops all events. The caller closes w after [Recorder.Flush].
func (r *Recorder) To(w io.Writer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.out, r.err = nil, nil
	if w != nil {
		r.out = bufio.NewWriter(w)
	}
}

// ID returns a new number for an Op, a Request or a Fault.
func (r *Recorder) ID() int64 { return r.ids.Add(1) }

// Now is the present time, for the At of an event that is recorded later.
func (r *Recorder) Now() time.Duration { return r.Clock.Now() }

// Record adds an event. If it has no time yet, it happens now. An error of the writer shows in Flush.
func (r *Recorder) Record(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.At == 0 {
		e.At = r.Clock.Now()
	}
	if r.out != nil && r.err == nil {
		r.err = json.NewEncoder(r.out).Encode(e)
	}
}

// Flush passes on what is buffered, and returns the first error there was.
func (r *Recorder) Flush() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.out != nil && r.err == nil {
		r.err = r.out.Flush()
	}
	return r.err
}
