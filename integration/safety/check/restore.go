package check

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

// restores checks I9. An error reports a restore only after there was one, and never in the next era. In the history of
// a restore, a failed acquisition reports the restore or a loss, Explain names the restore if the token of a lock that
// is still held was refused, no client is granted a lower token than before, and the handles that were live when the
// cluster was killed end soon after it is back.
func (c *checker) restores() {
	from := c.restored
	for _, a := range c.ops {
		for _, e := range []*history.Event{a.giveUp, a.explained, a.lost, a.released} {
			if reports(e) && (e.At < from || a.enter.At > c.era) {
				c.bad("I9", a.name(), show(a.enter, a.grant, e), "an error reports a restore that has not happened")
			}
		}
		if from == forever {
			continue
		}
		if reports(a.giveUp) {
			c.n[ToldOfRestore]++
		} else if a.giveUp != nil && reasonIn(a.giveUp.Error) == 0 {
			c.bad("I9", a.name(), show(a.enter, a.giveUp), "an acquisition failed, and the error reports neither the restore nor a loss")
		}
		if reports(a.explained) {
			c.n[Explained]++
		} else if a.explained != nil && (a.released == nil || a.released.Outcome != history.Failed) {
			c.bad("I9", a.name(), show(a.grant, a.explained), "the token of a lock that is held was refused, and Explain does not name the restore")
		}
		left := first(a.lost, a.release)
		if a.grant == nil || a.grant.At > from || left < from {
			continue
		}
		c.n[LiveAtRestore]++
		if bound := c.ttls[a.enter.Client()] + 3*time.Second; left > c.back+bound { // the deadline, or a renewal that finds the restore
			c.bad("I9", a.name(), show(a.grant, a.lost, a.release), "a handle is live %v after the cluster was back", bound)
		}
		if a.lost != nil {
			c.n[EndedByRestore]++
		}
		if reports(a.lost) {
			c.n[ToldAtEnd]++
		}
	}
	if from < forever {
		c.neverBack()
	}
}

// neverBack checks that no client is granted a lower token of a name than before. Readers may come in any order.
func (c *checker) neverBack() {
	type who struct{ client, name string }
	last := map[who]*history.Event{}
	granted := slices.DeleteFunc(slices.Clone(c.ops), func(a *acquisition) bool { return a.grant == nil })
	slices.SortStableFunc(granted, func(x, y *acquisition) int { return cmp.Compare(x.grant.At, y.grant.At) })
	for _, a := range granted {
		who := who{a.enter.Client(), a.name()}
		if before := last[who]; before != nil && a.token() < before.Token {
			c.bad("I9", who.name, show(before, a.grant), "%s was granted token %s after token %s, without an error that reports the restore",
				who.client, a.token().Text(), before.Token.Text())
		}
		if !a.shared() {
			last[who] = a.grant
		}
	}
}

// reports reports whether an event has an error that reports a restore. The event may be nil.
func reports(e *history.Event) bool {
	return e != nil && strings.Contains(e.Error, lease.ErrRestored.Error())
}
