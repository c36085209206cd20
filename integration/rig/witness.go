package rig

import (
	"cmp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leasefence/leasefence/fence"
)

// Span is the interval during which one hold was certainly live.
type Span struct {
	Token fence.Token
	From  time.Time     // when its acquisition had returned
	Last  time.Time     // the last instant at which the hold was certainly live; zero if there is none
	Over  chan struct{} // closed when the witness has seen the end of the hold; Last may be read then
}

// Witness follows the holds of one name. It is safe for concurrent use.
type Witness struct {
	mu    sync.Mutex // guards spans
	spans []*Span
}

// Follow polls a hold until it has ended. Call it as soon as the hold has been acquired.
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

// look reads the clock before it calls Err, so that Last is never too late.
func (s *Span) look(h *Hold) bool {
	at := time.Now()
	if h.Err() != nil {
		return false
	}
	s.Last = at
	return true
}

// Check waits until all holds have ended. It fails the test if two were live at one instant, if the tokens do not
// strictly increase in the order of the holds, or if fewer than least were seen live.
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
	var last *Span // among the spans with smaller tokens, the one with the latest Last
	for i, s := range spans {
		if i > 0 && s.Token == spans[i-1].Token {
			tb.Errorf("token %d was granted twice", s.Token)
		}
		if s.Last.IsZero() {
			continue
		}
		seen++
		if last != nil && !s.From.After(last.Last) {
			tb.Errorf("token %d was held before the smaller token %d ended, by %v", s.Token, last.Token, last.Last.Sub(s.From))
		}
		if last == nil || s.Last.After(last.Last) {
			last = s
		}
	}
	if seen < least {
		tb.Errorf("%d of %d holds were seen live, want %d", seen, len(spans), least)
	}
}
