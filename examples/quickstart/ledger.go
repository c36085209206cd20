package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasefence/leasefence/examples/internal/ledger"
	"github.com/leasefence/leasefence/examples/internal/timeline"
	"github.com/leasefence/leasefence/fence"
)

// openLedger opens a ledger that shows what it does.
func openLedger(ctx context.Context, fenced bool, tl *timeline.Timeline) (*ledger.Ledger, error) {
	say := func(token fence.Token, tone timeline.Tone, what string) { tl.Add(timeline.Ledger, token, tone, what) }
	claimed := func(a ledger.Attempt) {
		switch {
		case !fenced:
			say(a.Token, timeline.Plain, "takes no notice of the claim: fencing is off")
		case a.Err != nil:
			say(a.Token, timeline.Bad, fmt.Sprintf("REFUSES the claim: %v", a.Err))
		default:
			say(a.Token, timeline.Plain, fmt.Sprintf("is claimed: refuses tokens below %v from now on", a.Token))
		}
	}
	written := func(a ledger.Attempt) {
		switch {
		case errors.Is(a.Err, fence.ErrStale):
			say(a.Token, timeline.Bad, fmt.Sprintf("REFUSES %s's %v: %v", a.Entry.Writer, a.Entry, a.Err))
		case a.Err == nil && a.Late:
			say(a.Token, timeline.Bad, fmt.Sprintf("ACCEPTS %s's %v: it does not look at the token", a.Entry.Writer, a.Entry))
		case a.Err == nil:
			say(a.Token, timeline.Good, fmt.Sprintf("accepts %s's %v", a.Entry.Writer, a.Entry))
		}
	}
	return ledger.Open(ctx, fenced, claimed, written)
}
