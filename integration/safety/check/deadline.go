package check

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// punctual bounds how late the timer may end a context after the deadline, in a process that runs.
const punctual = 500 * time.Millisecond

// deadline checks that a handle does not outlive the deadline of its lease. A handle that is asked reads the clock, so
// it is never live after the deadline, even if the timer is late. Where only the context is read, the timer may be late,
// by punctual or by a stall: only processes that record their stalls read contexts alone.
func (c *checker) deadline(a *acquisition) {
	if a.key == nil || c.ends[a.key.put.Lease] == 0 || a.enter.Verb == history.Mutex { // etcd's own mutex has no deadline in the client
		return
	}
	c.n[Deadlines]++
	end, live := c.ends[a.key.put.Lease], a.lastAsked
	if live == nil || live.At <= end {
		if live = a.lastLive; live == nil || live.At <= end+punctual || c.stalls.touch(end, live.At) {
			return
		}
	}
	c.bad("I3", a.name(), show(a.grant, live, a.lost), "the handle of token %d was live %v after its deadline, %v", a.token(), live.At-end, end)
}

// leaseEnds finds the deadlines of leases. A deadline counts from the send time of the last renewal that was answered
// in time: an answer after the deadline revives nothing. No deadline is known without the TTL, or before a renewal that
// was sent in this history: of the renewals that were sent earlier, the last one may have been answered earlier too.
func (c *checker) leaseEnds() {
	if c.ttl == 0 {
		return
	}
	valid := c.ttl - min(c.ttl/10, time.Second) // the TTL without the margin
	c.ends = map[int64]time.Duration{}
	slices.SortStableFunc(c.renewed, func(x, y *history.Event) int { return cmp.Compare(x.At, y.At) })
	for _, e := range c.renewed {
		asked, err := time.ParseDuration(e.Value)
		if err != nil {
			c.malformed("renewal of lease %x has the value %q, want a duration", e.Lease, e.Value)
			continue
		}
		end, known := c.ends[e.Lease]
		if sent := e.At - asked; known && e.At <= end || !known && sent >= c.first {
			c.ends[e.Lease] = max(end, sent+valid)
		}
	}
}

// loud checks that the handle of a lost lock names the reason, and that its release reports the loss. The caller of Do or
// Run may end the context himself.
func (c *checker) loud(a *acquisition) {
	if a != a.parts[0] || a.lost == nil || a.release == nil || a.release.At < a.lost.At {
		return
	}
	lost := reasonIn(a.lost.Error) != 0 || reports(a.lost)
	switch {
	case !lost && a.release.Verb != history.Returned && !strings.Contains(a.lost.Error, election.ErrResigned.Error()):
		c.bad(c.exclusion(a.name()), a.name(), show(a.grant, a.lost), "a handle ended, and its cause has no reason")
	case lost && a.released != nil && a.released.Outcome == history.OK:
		c.bad(c.exclusion(a.name()), a.name(), show(a.grant, a.lost, a.released), "a lock was lost, and its release reports success")
	}
}

// returned checks that Do and Run release after their function has returned: until then only an operator or the end of
// the lease deletes the key. A holder that lost the lock learns it from the context or from the error.
func (c *checker) returned(a *acquisition) {
	k := a.key
	if k == nil || k.del == nil || a.release == nil || a.release.Verb != history.Returned {
		return
	}
	c.n["functions compared with the deletion of their keys"]++
	lost := a.released == nil || a.released.Outcome == history.Failed || a.lost != nil && reasonIn(a.lost.Error) != 0
	if k.del.At < a.release.At && k.by == nil && !lost {
		c.bad("I3", a.name(), show(k.put, a.grant, a.lost, k.del, a.release, a.released),
			"key %q was deleted %v before the function under the lock returned", k.put.Key, a.release.At-k.del.At)
	}
}
