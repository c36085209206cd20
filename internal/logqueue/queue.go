// Package logqueue keeps goroutines that must not block apart from the user's functions, which may: a log handler that
// writes to a full pipe or to a stuck disk blocks for as long as that lasts.
package logqueue

import (
	"context"
	"log/slog"
	"sync"
)

// most is the most calls that wait. Further calls are dropped and counted until all that wait have been taken.
const most = 256

// Queue calls functions, one after the other and in order, in a goroutine that lives while there are any. The zero
// value is ready for use. It is safe for concurrent use.
type Queue struct {
	overflow func(dropped int) // called in place of the calls that found no room; may be nil

	mu      sync.Mutex // guards the fields below
	waiting []func()
	dropped int           // the number of calls dropped since the last one in waiting
	idle    chan struct{} // closed when the goroutine ends; nil if there is none
}

// New returns a logger that never blocks, and the queue through which it writes to log. If log is nil, the logger is
// silent.
func New(log *slog.Logger) (*slog.Logger, *Queue) {
	if log == nil {
		return slog.New(slog.DiscardHandler), new(Queue)
	}
	q := &Queue{overflow: func(dropped int) {
		log.Warn("records were dropped: the log handler is too slow", "dropped", dropped)
	}}
	return slog.New(handler{q, log.Handler}), q
}

// Flush waits until no call waits or runs, or until ctx ends.
func (q *Queue) Flush(ctx context.Context) {
	q.mu.Lock()
	idle := q.idle
	q.mu.Unlock()
	if idle == nil {
		return
	}
	select {
	case <-idle:
	case <-ctx.Done():
	}
}

// Add queues a call of f. It does not block.
func (q *Queue) Add(f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dropped > 0 || len(q.waiting) == most {
		q.dropped++
		return
	}
	q.waiting = append(q.waiting, f)
	if q.idle == nil {
		q.idle = make(chan struct{})
		go q.run()
	}
}

// run makes the calls that wait until there are none.
func (q *Queue) run() {
	for {
		batch, dropped := q.take()
		if len(batch) == 0 {
			return
		}
		for _, f := range batch {
			f()
		}
		if dropped > 0 && q.overflow != nil {
			q.overflow(dropped)
		}
	}
}

func (q *Queue) take() (batch []func(), dropped int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	batch, dropped = q.waiting, q.dropped
	q.waiting, q.dropped = nil, 0
	if len(batch) == 0 {
		close(q.idle)
		q.idle = nil
	}
	return batch, dropped
}

// handler queues records for another handler. It calls no method of that, Enabled included, before the queue's
// goroutine does.
type handler struct {
	q    *Queue
	next func() slog.Handler
}

// Enabled implements [slog.Handler].
func (h handler) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements [slog.Handler].
func (h handler) Handle(_ context.Context, r slog.Record) error {
	r = r.Clone()
	h.q.Add(func() { // the caller's context may have ended before the record is written
		if to, ctx := h.next(), context.Background(); to.Enabled(ctx, r.Level) {
			_ = to.Handle(ctx, r) // nobody could handle the error
		}
	})
	return nil
}

// WithAttrs implements [slog.Handler].
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.with(func(next slog.Handler) slog.Handler { return next.WithAttrs(attrs) })
}

// WithGroup implements [slog.Handler].
func (h handler) WithGroup(name string) slog.Handler {
	return h.with(func(next slog.Handler) slog.Handler { return next.WithGroup(name) })
}

func (h handler) with(f func(slog.Handler) slog.Handler) slog.Handler {
	return handler{h.q, sync.OnceValue(func() slog.Handler { return f(h.next()) })}
}
