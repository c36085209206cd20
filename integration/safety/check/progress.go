package check

import (
	"time"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// progress checks I7: a waiter is served in time while nobody holds the name and no fault is on. A waiting reader waits
// only for writers that hold the name or wait for it, not for other readers. Once all faults have healed, those who
// wait are served in time whoever holds the name.
func (c *checker) progress() {
	busy, writers, names := map[string]spans{}, map[string]spans{}, map[string]bool{}
	for _, a := range c.ops {
		names[a.enter.Name] = true
		name, one := a.enter.Name, span{a.enter.At, a.ended()}
		if a.enter.Verb == history.Permit {
			one.to = a.served() // it waits for the semaphore's name, but gets that of a slot
		}
		if a.waits() && !a.shared() {
			writers[name] = append(writers[name], one)
		}
		// A lock of several queues may be first in this one and wait in another. Until then it counts as a holder.
		if a.grant != nil && !a.alone() {
			one.from = a.grant.At
		}
		if one.to = max(one.from, one.to); a.grant != nil || a.waits() && a.alone() {
			busy[name] = append(busy[name], one)
			if !a.shared() {
				writers[name] = append(writers[name], one)
			}
		}
	}
	var faults, slow spans
	for _, f := range c.faults {
		faults = append(faults, span{f.begin.At, f.until()})
		if f.begin.Name == history.SlowCluster {
			slow = append(slow, faults[len(faults)-1])
		}
	}
	slow = union(slow)
	for name := range names {
		busy[name], writers[name] = union(busy[name], faults), union(writers[name], faults)
	}
	calm := union(faults)
	limit := 2*c.ttl + 3*time.Second
	for _, a := range c.ops {
		if c.whole && a.ended() == forever {
			c.bad("I7", a.name(), show(a.enter, a.grant, a.release), "it was neither served and released nor given up before the end")
		}
		if !a.waits() {
			continue
		}
		c.n["acquisitions that waited"]++
		// The watch of etcd's own mutex ends when an auth token expires.
		if a.giveUp != nil && a.enter.At > c.peace && a.enter.Verb != history.Mutex {
			if slow.touch(max(a.enter.At-c.ttl, a.giveUp.At-limit), a.giveUp.At) {
				c.n[Excused]++
			} else {
				c.bad("I7", a.name(), show(a.enter, a.giveUp), "it failed in peace, and no slow commit excuses that")
			}
		}
		if gap := calm.spare(c.healed, min(a.served(), c.last)); c.ttl > 0 && gap > limit && a.enter.At < c.healed {
			c.bad("I7", a.name(), show(a.enter, a.grant, a.giveUp),
				"it waited for %v after all faults had healed: want at most %v", gap, limit)
		}
		if a.alone() {
			continue
		}
		held := busy[a.enter.Name]
		if a.shared() {
			held = writers[a.enter.Name]
		}
		if gap := held.spare(a.enter.At, min(a.served(), c.last)); c.ttl > 0 && gap > limit {
			c.bad("I7", a.name(), show(a.enter, a.grant, a.giveUp),
				"it waited for %v while nobody held the name and no fault was on: want at most %v", gap, limit)
		}
	}
}

func (a *acquisition) served() time.Duration { return min(first(a.grant), a.ended()) }

// Within a session the order is strict. But a process that is short of CPU time takes its place long after its enter
// event. So a waiter may look overtaken by a few callers, and by more than within up to unclear waiters of a history
// may.
const (
	entering = time.Second // the longest time, without faults, to take a place in the line
	passes   = 2           // how many callers that entered more than that later may pass a waiter
	within   = 250 * time.Millisecond
	unclear  = 4
)

// order checks that the waiters of each session are served in their order; that of sessions is I2. No fault changes it,
// since the waiters stand in line in the process. The lease of the key identifies the session. Readers, candidates of
// elections and locks of several queues are left out, since each has its own place in etcd's queues.
func (c *checker) order() {
	var overtaken []*acquisition // by more than within
	for name, all := range c.granted {
		sessions := map[int64][]*acquisition{} // by lease: those granted so far
		for _, a := range all {
			if a.key == nil || a.shared() || a.alone() || c.elections[name] {
				continue
			}
			before := sessions[a.key.put.Lease]
			sessions[a.key.put.Lease] = append(before, a)
			if !a.waits() {
				continue
			}
			if a.grant.At-a.enter.At > entering {
				c.n["waiters compared with others of their session"]++
			}
			var last time.Duration
			var later []*history.Event
			for _, x := range before {
				if last = max(last, x.enter.At); x.enter.At > a.enter.At+entering {
					later = append(later, x.enter, x.grant)
				}
			}
			if last > a.enter.At+within && !c.stalls.touch(a.enter.At, last) {
				overtaken = append(overtaken, a)
			}
			if n := len(later) / 2; n > passes {
				c.bad("I7", name, show(append(later, a.enter, a.grant)...),
					"%s has waited since %v, and %d others of its session that entered later were granted it before: want at most %d",
					a.enter.Actor, a.enter.At, n, passes)
			}
		}
	}
	if len(overtaken) > unclear {
		var events []history.Event
		for _, a := range overtaken[:unclear] {
			events = append(events, show(a.enter, a.grant)...)
		}
		c.bad("I7", overtaken[0].name(), events,
			"%d waiters were served after others of their session that entered more than %v later, want at most %d", len(overtaken), within, unclear)
	}
	c.n["waiters that look overtaken"] = len(overtaken)
}

// waits reports whether a waits for the name. A try does not.
func (a *acquisition) waits() bool { return !a.enter.Try }
