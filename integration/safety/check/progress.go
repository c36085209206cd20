package check

import (
	"cmp"
	"slices"
	"time"
)

// patience returns how long waiters may wait while nobody holds the name and no fault is on.
func patience(ttl time.Duration) time.Duration { return 2*ttl + 3*time.Second }

// step is a change in the numbers of waiters, holders and active faults.
type step struct {
	at           time.Duration
	waits, holds int
	on           int // faults
	granted      bool
	acquisition  *acquisition
}

// progress checks I7: without faults, a name with waiters and no holder is granted in time. So is a name with waiting
// readers and with no writer that holds it or waits for it, even if other readers hold it.
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
			c.bad("I7", a.name(), show(a.enter), "a waiter was neither served nor gave up before the end")
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

// steps returns the steps of one acquisition. A try is not a waiter.
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
	if a.alone() { // it may be first in this queue and wait in another: until then it counts as a holder
		if a.enter.Verb.OfPermit() {
			steps = steps[:min(len(steps), 2)] // it waits for the semaphore's name, but gets that of a slot
		}
		for n := range steps {
			steps[n].holds, steps[n].waits = steps[n].holds+steps[n].waits, 0
		}
	}
	return steps, waits
}

// forReaders returns the steps of an acquisition as a waiting reader sees them: a waiting writer counts as a holder,
// and a reader that holds the name does not count.
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

// pace goes through the steps of one name in the order of time. A name is idle while it has waiters, no holder and no
// fault is on. That time counts from the last heal, the last grant or release, or the arrival of the first waiter.
func (c *checker) pace(name string, steps []step) {
	slices.SortStableFunc(steps, func(x, y step) int {
		return cmp.Or(cmp.Compare(x.at, y.at), cmp.Compare(y.holds, x.holds)) // a hold begins before another ends
	})
	var now step
	var since time.Duration
	var waiter *acquisition // the last one that came while nobody else waited
	idle := func() bool { return now.waits > 0 && now.holds == 0 && now.on == 0 }
	settle := func(at time.Duration) {
		if !idle() {
			return
		}
		gap := at - since
		c.report.Idle = max(c.report.Idle, gap)
		if limit := patience(c.ttl); c.ttl > 0 && gap > limit {
			c.bad("I7", name, show(waiter.enter), "from %v to %v somebody waited, nobody held the name and no fault was on: want at most %v",
				since, at, limit)
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
