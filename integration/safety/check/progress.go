package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// patience is how long waiters may wait while nobody holds what they want and no fault is on.
func patience(ttl time.Duration) time.Duration { return 2*ttl + 3*time.Second }

// step is a change of who waits for a name or holds it, or of the faults that are on.
type step struct {
	at           time.Duration
	waits, holds int
	on           int // faults
	granted      bool
	acquisition  *acquisition
}

// progress checks I7: without faults, a name that somebody waits for and nobody holds is granted to someone in time; and so is one
// that a reader waits for, and no writer holds or waits for, whatever other readers do.
func (c *checker) progress() {
	names, readers := map[string][]step{}, map[string][]step{}
	waiting := 0
	for _, a := range c.ops {
		steps, waits := c.steps(a)
		name := a.enter.Name
		names[name] = append(names[name], steps...)
		readers[name] = append(readers[name], forReaders(a, steps)...)
		if waits {
			waiting++
		}
		if waits && c.whole && a.grant == nil && a.ended() == forever {
			c.violation(Violation{"I7", "progress", a.name(), "at the end it is neither served nor has it given up", show(a.enter)})
		}
	}
	var faults []step
	for _, f := range c.faults {
		faults = append(faults, step{at: f.begin.At, on: 1})
		if f.until() != forever {
			faults = append(faults, step{at: f.until(), on: -1})
		}
	}
	for name, steps := range names {
		c.pace(name, append(steps, faults...))
		c.pace(name, append(readers[name], faults...))
	}
	c.count("acquisitions that waited", waiting)
}

// steps are those of one acquisition. A try is not a waiter.
func (c *checker) steps(a *acquisition) (steps []step, waits bool) {
	waits = a.waits()
	over := a.ended()
	if waits {
		steps = append(steps, step{at: a.enter.At, waits: 1, acquisition: a})
		switch {
		case a.grant != nil:
			steps = append(steps, step{at: a.grant.At, waits: -1, granted: true})
		case over != forever:
			steps = append(steps, step{at: over, waits: -1})
		}
	}
	if a.grant != nil {
		steps = append(steps, step{at: a.grant.At, holds: 1, granted: true})
		if over != forever {
			steps = append(steps, step{at: max(over, a.grant.At), holds: -1})
		}
	}
	if a.alone() { // it may stand first here and wait elsewhere: nobody is let in for as long
		if a.enter.Verb.OfPermit() {
			steps = steps[:min(len(steps), 2)] // what it gets is not what it waits for
		}
		for n := range steps {
			steps[n].holds, steps[n].waits = steps[n].holds+steps[n].waits, 0
		}
	}
	return steps, waits
}

// forReaders are the steps of an acquisition as a reader sees it that waits: a writer who waits holds the name already, and a
// reader who holds it is not in the way.
func forReaders(a *acquisition, steps []step) []step {
	var seen []step
	for _, s := range steps {
		switch {
		case !a.shared():
			s.waits, s.holds = 0, s.waits+s.holds
		case s.holds != 0:
			continue
		}
		seen = append(seen, s)
	}
	return seen
}

// pace goes through one name in time. Idle is counted from the last of: a heal, a change of holders, the first that waits.
func (c *checker) pace(name string, steps []step) {
	slices.SortStableFunc(steps, func(x, y step) int {
		return cmp.Or(cmp.Compare(x.at, y.at), cmp.Compare(y.holds, x.holds)) // who holds begins before another ends
	})
	var now step
	var since time.Duration
	var waiter *acquisition // the last that came when nobody waited
	idle := func() bool { return now.waits > 0 && now.holds == 0 && now.on == 0 }
	settle := func(at time.Duration) {
		if !idle() {
			return
		}
		gap := at - since
		c.report.Idle = max(c.report.Idle, gap)
		if limit := patience(c.ttl); c.ttl > 0 && gap > limit {
			c.violation(Violation{
				"I7", "progress", name,
				fmt.Sprintf("from %v to %v somebody waited, nobody held it and no fault was on: want at most %v", since, at, limit),
				show(waiter.enter),
			})
		}
	}
	for _, s := range steps {
		was := idle()
		if s.granted || s.on != 0 || now.waits+s.waits == 0 || now.holds+s.holds > 0 {
			settle(s.at)
			since = s.at
		}
		if s.waits > 0 && now.waits == 0 {
			waiter = s.acquisition
		}
		now.waits, now.holds, now.on = now.waits+s.waits, now.holds+s.holds, now.on+s.on
		if !was && idle() {
			since = s.at
		}
	}
	settle(c.last)
}
