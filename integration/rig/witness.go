package rig

import (
	"cmp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leasefence/leasefence/fence"
)

// Span is what is known of one hold.
type Span struct {
	Token fence.Token
	From  time.Time     // when its acquisition had returned
	Last  time.Time     // the last instant at which it was live for certain; zero if it never was
	Over  chan struct{} // closed when it is known to have ended; Last may be read then
}

// Witness follows the holds of one name. It is safe for concurrent use.
type Witness struct {
	mu    sync.Mutex // guards spans
	spans []*Span
}

// Follow looks whether a hold is live until it is not. Call it as soon as the hold has been acquired.
func (w *Witness) Follow(h *Hold) *Span {
	s := &Span{Token: h.Token(), From: time.Now(), Over: make(chan struct{})}
	live := s.look(h)
	w.mu.Lock()
	w.spans = append(w.spans, s)
	w.mu.Unlock()
	if !live {
		close(s.Over)
		return s
	}
	go func() {
		defer close(s.Over)
		ticker := time.NewTicker(time.Millisecond)
		defer ticker.Stop()
		for s.look(h) {
			<-ticker.C
		}
	}()
	return s
}

// look reads the clock before it asks, so that it stays behind the truth.
func (s *Span) look(h *Hold) bool {
	at := time.Now()
	if h.Err() != nil {
		return false
	}
	s.Last = at
	return true
}

// Check waits until all holds are over. It fails the test if two were live at one instant, if the tokens do not strictly
// increase in the order of the holds, or if fewer than least were seen alive.
func (w *Witness) Check(tb testing.TB, least int) {
	tb.Helper()
	w.mu.Lock()
	spans := slices.Clone(w.spans)
	w.mu.Unlock()
	for _, s := range spans {
		Await(tb, s.Over, "a hold did not end")
	}
	slices.SortFunc(spans, func(a, b *Span) int { return cmp.Compare(a.Token, b.Token) })
	seen := 0
	var last *Span // of those with smaller tokens the one that was live last
	for i, s := range spans {
		if i > 0 && s.Token == spans[i-1].Token {
			tb.Errorf("token %d was given twice", s.Token)
		}
		if s.Last.IsZero() {
			continue
		}
		seen++
		if last != nil && !s.From.After(last.Last) {
			tb.Errorf("token %d was held when %d still was, or before: for %v", s.Token, last.Token, last.Last.Sub(s.From))
		}
		if last == nil || s.Last.After(last.Last) {
			last = s
		}
	}
	if seen < least {
		tb.Errorf("%d of %d holds were seen alive, want %d", seen, len(spans), least)
	}
}
