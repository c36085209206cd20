//go:build unix

package demo

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/leasefence/leasefence/examples/internal/ledger"
	"github.com/leasefence/leasefence/examples/internal/timeline"
	"github.com/leasefence/leasefence/fence"
)

// show prints an event.
func (s *stage) show(e event) {
	tone, text := timeline.Plain, e.what
	switch e.what {
	case leads:
		tone = timeline.Good
	case isRefused, hasLost:
		tone = timeline.Bad
	case hasEnded:
		text += ": " + e.node.ending()
	}
	for _, key := range slices.Sorted(maps.Keys(e.more)) {
		value := e.more[key]
		if value == nil {
			continue
		}
		switch key {
		case "time", "level", "msg", "token", "id":
		case "why", "err":
			text += fmt.Sprintf(": %v", value)
		default:
			text += fmt.Sprintf("; %s: %v", key, value)
		}
	}
	s.tl.AddAt(e.when, e.node.actor, e.token, tone, strings.ReplaceAll(text, "\n", "; "))
}

// claimed shows a claim that has reached the ledger.
func (s *stage) claimed(a ledger.Attempt) {
	switch {
	case s.opts.NoFence:
		s.tl.Add(timeline.Ledger, a.Token, timeline.Plain, "takes no notice of the claim: fencing is off")
	case a.Err != nil:
		s.tl.Add(timeline.Ledger, a.Token, timeline.Bad, fmt.Sprintf("REFUSES the claim: %v", a.Err))
	default:
		s.tl.Add(timeline.Ledger, a.Token, timeline.Plain, fmt.Sprintf("is claimed: refuses tokens below %v from now on", a.Token))
	}
}

// written shows a write that has reached the ledger. Of those that are as they should be the first of each leader
// is enough.
func (s *stage) written(a ledger.Attempt) {
	e := event{when: time.Now(), what: accepts, token: a.Token}
	if a.Err != nil {
		e.what = refuses
	}
	defer s.record.add(e) // after it was shown
	switch {
	case a.Err != nil:
		s.tl.Add(timeline.Ledger, a.Token, timeline.Bad, fmt.Sprintf("REFUSES %s's %v: %v", a.Entry.Writer, a.Entry, a.Err))
	case a.Late:
		s.tl.Add(timeline.Ledger, a.Token, timeline.Bad, fmt.Sprintf("ACCEPTS %s's %v: it does not look at the token", a.Entry.Writer, a.Entry))
	case s.opts.Verbose || count(s.book.Attempts(), a.Token) == 1:
		s.tl.Add(timeline.Ledger, a.Token, timeline.Good, fmt.Sprintf("accepts %s's %v", a.Entry.Writer, a.Entry))
	}
}

// count is the number of accepted writes with a token.
func count(writes []ledger.Attempt, token fence.Token) int {
	n := 0
	for _, w := range writes {
		if w.Token == token && w.Err == nil {
			n++
		}
	}
	return n
}
