// Package logqueue stands between goroutines that must not wait and a log handler that may: who writes to a full pipe or to
// a stuck disk blocks for as long as that lasts.
package logqueue

import (
	"context"
	"log/slog"
	"sync"
)

// most is how many records wait for the handler. Further ones are dropped and counted until it has written all of them.
const most = 256

// Queue hands records to a handler, one after the other and in order, in a goroutine that lives while there are any.
type Queue struct {
	handler slog.Handler // the caller's: every call of it may block

	mu      sync.Mutex // guards the fields below
	waiting []record
	dropped int           // since the last of waiting
	idle    chan struct{} // closed when the goroutine ends; nil if there is none
}

// record is one that waits, and what it is handed to.
type record struct {
	slog.Record

	to func() slog.Handler
}

// New returns a logger that never blocks, and the queue through which it writes to log. Of nil it is a silent one, whose
// queue is nil.
func New(log *slog.Logger) (*slog.Logger, *Queue) {
	if log == nil {
		return slog.New(slog.DiscardHandler), nil
	}
	q := &Queue{handler: log.Handler()}
	return slog.New(handler{q, func() slog.Handler { return q.handler }}), q
}

// Flush waits until the handler has written everything, or ctx ends.
func (q *Queue) Flush(ctx context.Context) {
	if q == nil {
		return
	}
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

func (q *Queue) add(r record) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dropped > 0 || len(q.waiting) == most {
		q.dropped++
		return
	}
	q.waiting = append(q.waiting, r)
	if q.idle == nil {
		q.idle = make(chan struct{})
		go q.write()
	}
}

// write hands over what waits until nothing does.
func (q *Queue) write() {
	for {
		batch, dropped := q.take()
		if len(batch) == 0 {
			return
		}
		for _, r := range batch {
			if to, ctx := r.to(), context.Background(); to.Enabled(ctx, r.Level) {
				_ = to.Handle(ctx, r.Record) // there is nobody to tell
			}
		}
		if dropped > 0 {
			log := slog.New(q.handler)
			log.Warn("records were dropped: the log handler is too slow", "dropped", dropped)
		}
	}
}

func (q *Queue) take() (batch []record, dropped int) {
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

// handler asks the caller's nothing before the goroutine does.
type handler struct {
	q    *Queue
	next func() slog.Handler
}

// Enabled implements [slog.Handler].
func (h handler) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements [slog.Handler].
func (h handler) Handle(_ context.Context, r slog.Record) error {
	h.q.add(record{r.Clone(), h.next}) //nolint:contextcheck // the caller's may have ended before it is written
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
