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

// Clock counts from the beginning of a run. Processes of one host that begin with the same [Clock.Began] agree.
type Clock struct {
	began time.Duration // CLOCK_MONOTONIC
}

// NewClock begins a run now.
func NewClock() Clock { return Clock{monotonic()} }

// ResumeClock is the clock of a run that has begun in another process of the host.
func ResumeClock(began time.Duration) Clock { return Clock{began} }

// Began is what [ResumeClock] takes.
func (c Clock) Began() time.Duration { return c.began }

// Now is the time since the beginning of the run.
func (c Clock) Now() time.Duration { return monotonic() - c.began }

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
	mu  sync.Mutex // guards what follows
	out *bufio.Writer
	err error
}

// NewRecorder writes to w, which the caller closes after [Recorder.Flush]. Numbers given out by [Recorder.ID] begin above first:
// each process of a run has its own range.
func NewRecorder(w io.Writer, clock Clock, first int64) *Recorder {
	r := &Recorder{Clock: clock, out: bufio.NewWriter(w)}
	r.ids.Store(first)
	return r
}

// ID returns a new number for an Op, a Request or a Fault.
func (r *Recorder) ID() int64 { return r.ids.Add(1) }

// Now is the time for an event that is recorded later.
func (r *Recorder) Now() time.Duration { return r.Clock.Now() }

// Record adds an event. If it has no time yet, it happens now. An error of the writer shows in Flush.
func (r *Recorder) Record(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.At == 0 {
		e.At = r.Clock.Now()
	}
	if r.err == nil {
		r.err = json.NewEncoder(r.out).Encode(e)
	}
}

// Flush passes on what is buffered, and returns the first error there was.
func (r *Recorder) Flush() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = r.out.Flush()
	}
	return r.err
}
