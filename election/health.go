package election

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// Health reports whether the leaders of this process are healthy, for liveness and readiness probes: it is an
// http.Handler that answers 200, or 503 with the reason. It fails while a renewal of a leader's lease is overdue by
// more than the tolerance. It also fails if a leader's context ended longer ago than the tolerance and the leadership
// has not been resigned, as when lead hangs. It never fails for a process that only waits to lead. Renewals are due
// every third of the TTL; Health checks the leader's deadline, not whether the renewal goroutine is alive.
//
// Set it in [Options].Health, of any number of candidates. It is safe for concurrent use.
type Health struct {
	tolerance time.Duration

	mu      sync.Mutex                // guards the field below
	leaders map[*Leadership]time.Time // when the context of its work ended; zero if it has not
}

// NewHealth returns a Health with a tolerance of more than 0. A third of the TTL is a good choice: the leader is then
// still valid when Health begins to fail, for about as long again.
func NewHealth(tolerance time.Duration) (*Health, error) {
	if tolerance <= 0 {
		return nil, fmt.Errorf("election: tolerance is %v, want more than 0", tolerance)
	}
	return &Health{tolerance: tolerance}, nil
}

// Check returns nil if all leaders are healthy, and otherwise an error that names the others.
func (h *Health) Check() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for l, ended := range h.leaders {
		overdue, left := l.hold.Overdue(), time.Duration(0)
		if l.lock.Err() == nil {
			left = time.Until(l.lock.Deadline())
		}
		switch {
		case overdue > h.tolerance:
			errs = append(errs, fmt.Errorf("election: leader of %q: a renewal is overdue by %v, %v are left",
				l.name, overdue.Round(time.Millisecond), left.Round(time.Millisecond)))
		case !ended.IsZero() && time.Since(ended) > h.tolerance:
			errs = append(errs, fmt.Errorf("election: leader of %q: its context ended %v ago and it has not resigned", l.name,
				time.Since(ended).Round(time.Millisecond)))
		}
	}
	return errors.Join(errs...)
}

// ServeHTTP answers a probe.
func (h *Health) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if err := h.Check(); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = fmt.Fprintln(w, err) // a failure means that the prober has gone
		return
	}
	_, _ = fmt.Fprintln(w, "ok")
}

// add checks l from now on. Work is the context of its work.
func (h *Health) add(work context.Context, l *Leadership) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.leaders == nil {
		h.leaders = make(map[*Leadership]time.Time)
	}
	h.leaders[l] = time.Time{}
	context.AfterFunc(work, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if _, there := h.leaders[l]; there {
			h.leaders[l] = time.Now()
		}
	})
}

func (h *Health) remove(l *Leadership) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.leaders, l)
}
