//go:build unix

package stage

import (
	"errors"
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
func (s *Stage) show(e Event) {
	tone, text := timeline.Plain, e.What
	switch e.What {
	case Leads, Locks:
		tone = timeline.Good
	case IsRefused, HasLost, LockIsLost:
		tone = timeline.Bad
	case HasEnded:
		text += ": " + e.Node.ending()
	}
	for _, key := range slices.Sorted(maps.Keys(e.More)) {
		value := e.More[key]
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
	s.TL.AddAt(e.When, e.Node.Actor, e.Token, tone, strings.ReplaceAll(text, "\n", "; "))
}

// claimed shows a claim that has reached the ledger.
func (s *Stage) claimed(a ledger.Attempt) {
	switch {
	case s.NoFence:
		s.TL.Add(timeline.Ledger, a.Token, timeline.Plain, "takes no notice of the claim: fencing is off")
	case a.Err != nil:
		s.TL.Add(timeline.Ledger, a.Token, timeline.Bad, "REFUSES the claim: "+reason(a.Err))
	default:
		s.TL.Add(timeline.Ledger, a.Token, timeline.Plain, fmt.Sprintf("is claimed: refuses tokens below %v from now on", a.Token))
	}
}

// written shows a write that has reached the ledger. Of those that are as they should be the first of each tenure is
// enough.
func (s *Stage) written(a ledger.Attempt) {
	e := Event{When: time.Now(), What: Accepts, Token: a.Token}
	if a.Err != nil {
		e.What = Refuses
	}
	defer s.Record.add(e) // after it was shown
	switch {
	case a.Err != nil:
		s.TL.Add(timeline.Ledger, a.Token, timeline.Bad, fmt.Sprintf("REFUSES %s's %v: %s", a.Entry.Writer, a.Entry, reason(a.Err)))
	case a.Late:
		s.TL.Add(timeline.Ledger, a.Token, timeline.Bad, fmt.Sprintf("ACCEPTS %s's %v: it does not look at the token", a.Entry.Writer, a.Entry))
	case s.Verbose || count(s.book.Attempts(), a.Token) == 1:
		s.TL.Add(timeline.Ledger, a.Token, timeline.Good, fmt.Sprintf("accepts %s's %v", a.Entry.Writer, a.Entry))
	}
}

// reason is a refusal, short enough for a line.
func reason(err error) string {
	if stale, ok := errors.AsType[*fence.StaleError](err); ok {
		return fmt.Sprintf("%v is older than %v", stale.Token, stale.Highest)
	}
	return err.Error()
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
