package check

import (
	"time"

	"github.com/leasefence/leasefence/integration/safety/history"
)

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
