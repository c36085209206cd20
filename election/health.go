package election

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// Health says whether the leaders of this process are sound, for liveness and readiness probes: it is an http.Handler
// that answers 200, or 503 with the reason. It fails while a renewal of a leader's lease is overdue by more than the
// tolerance, and for a leader that was lost longer ago than that and has not let go: a lead that hangs. It never fails for a
// process that only waits to lead. Renewals are due every third of the TTL; what counts is what the leader itself
// goes by, not whether something still runs that should renew.
//
// It is told of leaders by [Options].Health, and may be told of any number. It is safe for concurrent use.
type Health struct {
	tolerance time.Duration

	mu      sync.Mutex // guards the field below
	leaders map[*Leadership]*patient
}

// patient is a leader that is looked after.
type patient struct {
	lost   time.Time // zero if it was not
	forget func() bool
}

// NewHealth makes a Health that tolerates renewals overdue by so much; more than 0. As a rule, a third of the TTL: the
// leader is still valid then, and for about as long again.
func NewHealth(tolerance time.Duration) (*Health, error) {
	if tolerance <= 0 {
		return nil, fmt.Errorf("election: tolerance is %v, want more than 0", tolerance)
	}
	return &Health{tolerance: tolerance}, nil
}

// Check is nil if all leaders are sound, or tells those that are not.
func (h *Health) Check() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for l, p := range h.leaders {
		left, overdue := l.tenure.Lease()
		switch {
		case overdue > h.tolerance:
			errs = append(errs, fmt.Errorf("election: leader of %q: a renewal is overdue by %v, %v are left",
				l.name, overdue.Round(time.Millisecond), left.Round(time.Millisecond)))
		case !p.lost.IsZero() && time.Since(p.lost) > h.tolerance:
			errs = append(errs, fmt.Errorf("election: leader of %q: lost %v ago and has not let go", l.name,
				time.Since(p.lost).Round(time.Millisecond)))
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
		_, _ = fmt.Fprintln(w, err) // the prober has gone: nobody to tell
		return
	}
	_, _ = fmt.Fprintln(w, "ok")
}

func (h *Health) add(l *Leadership) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	p := &patient{}
	p.forget = context.AfterFunc(l.tenure.Context(), func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		p.lost = time.Now()
	})
	if h.leaders == nil {
		h.leaders = make(map[*Leadership]*patient)
	}
	h.leaders[l] = p
}

func (h *Health) remove(l *Leadership) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.leaders[l]; p != nil {
		p.forget()
		delete(h.leaders, l)
	}
}
