package check

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// exclusion returns the invariant that forbids two live handles of the name.
func (b *book) exclusion(name string) string {
	if b.elections[name] {
		return "I8"
	}
	return "I3"
}

// intervals checks I3, and I8 for elections: a handle is not live after a handle with a higher token was granted,
// unless both are readers. That is enough to prove mutual exclusion. It also checks the part of I2 that needs no watch:
// the tokens are the order of the grants. They increase with the revisions of etcd, and an acquisition that enters
// after a handle was returned gets a larger token. So no search for another order is needed.
func (c *checker) intervals() {
	permits := map[string][]*acquisition{}
	for _, a := range c.ops {
		if a.grant != nil && a.enter.Verb == history.Permit {
			permits[a.enter.Name] = append(permits[a.enter.Name], a)
		}
	}
	for name, all := range c.granted {
		if strings.HasSuffix(name, history.PeerMark) {
			c.countPeers(all)
			continue
		}
		var writer, anybody, first *acquisition // the first that was granted, of those with higher tokens; first: even if it was excused
		for n, a := range slices.Backward(all) {
			switch {
			case !a.token().Valid():
				c.bad("I2", name, show(a.grant), "token %d is not valid", a.token())
			case n > 0 && revision(all[n-1].token()) >= revision(a.token()):
				c.bad("I2", name, show(all[n-1].grant, a.grant), "token %d was granted, and token %d too", a.token(), all[n-1].token())
			case first != nil && first.grant.At < a.enter.At:
				c.bad("I2", name, show(first.grant, a.enter, a.grant),
					"token %d was granted to an acquisition that entered after the grant of %d", a.token(), first.token())
			}
			first = earlier(first, a)
			rival := anybody
			if a.shared() {
				rival = writer
			}
			if c.overlap(name, a, rival) {
				c.n["live intervals compared"]++
			}
			if a.excused <= a.grant.At {
				continue // an operator may have taken its key before
			}
			anybody = earlier(anybody, a)
			if !a.shared() {
				writer = earlier(writer, a)
			}
			if a.enter.Verb == history.Mutex {
				for _, p := range permits[name] {
					c.overlap(name, p, a)
				}
			}
		}
	}
}

// countPeers counts the holders of a mutex of etcd that took themselves for holders when the next one was granted it.
func (c *checker) countPeers(all []*acquisition) {
	for n := 1; n < len(all); n++ {
		live, left := all[n-1].lastLive, all[n-1].release
		if next := all[n].grant.At; live != nil && live.At > next && (left == nil || left.At > next) {
			c.n[PeerOverlaps]++
		}
	}
}

// overlap compares a handle with one that excludes it, which may be nil. One with a lower token does not matter: etcd's
// own mutex does not wait for permits with higher tokens, which waiters that came before it may get. overlap reports
// whether a was live.
func (c *checker) overlap(name string, a, rival *acquisition) bool {
	to, live := a.live()
	if !live || rival == nil || rival.token() <= a.token() || to <= rival.grant.At {
		return live
	}
	invariant := c.exclusion(name)
	if a.grant.At > rival.grant.At {
		invariant = "I2"
	}
	c.bad(invariant, name, show(a.grant, rival.grant, a.lastLive, rival.lastLive),
		"token %d was live %v after token %d was granted", a.token(), to-rival.grant.At, rival.token())
	return live
}

// earlier returns the acquisition that was granted first. x may be nil.
func earlier(x, y *acquisition) *acquisition {
	if x == nil || y.grant.At < x.grant.At {
		return y
	}
	return x
}

// slot checks that a permit is one of those that there are. Each has a slot, whose name has one holder at a time.
func (c *checker) slot(a *acquisition) {
	if a.grant == nil || a.enter.Verb != history.Permit {
		return
	}
	of, err := strconv.Atoi(a.enter.Value)
	slot, bad := strconv.Atoi(a.grant.Name[strings.LastIndexByte(a.grant.Name, '/')+1:])
	switch {
	case err != nil || bad != nil:
		c.malformed("op %d wants one of %q permits and has %q", a.enter.Op, a.enter.Value, a.grant.Name)
	case slot >= of:
		c.bad("I3", a.enter.Name, show(a.enter, a.grant), "a permit of slot %d was granted, but there are %d permits", slot, of)
	}
}

// afterlife checks that a handle that has ended does not become live again.
func (c *checker) afterlife(a *acquisition) {
	if a.lastLive == nil {
		return
	}
	what := ""
	switch {
	case a.lost != nil && a.lastLive.At > a.lost.At:
		what = "after it was lost"
	case a.released != nil && a.lastLive.At > a.released.At:
		what = "after it was released"
	default:
		return
	}
	c.bad(c.exclusion(a.name()), a.name(), show(a.enter, a.grant, a.lost, a.released, a.lastLive), "a handle was live %s", what)
}

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

// spans are disjoint intervals, in order.
type spans []span

type span struct{ from, to time.Duration }

// touch reports whether one of the intervals meets the one between from and to.
func (s spans) touch(from, to time.Duration) bool {
	n, _ := slices.BinarySearchFunc(s, from, func(one span, t time.Duration) int { return cmp.Compare(one.to, t) })
	return n < len(s) && s[n].from <= to
}

// spare returns the longest time between from and to that is in none of the intervals.
func (s spans) spare(from, to time.Duration) (longest time.Duration) {
	n, _ := slices.BinarySearchFunc(s, from, func(one span, t time.Duration) int { return cmp.Compare(one.to, t) })
	for _, one := range s[n:] {
		if one.from >= to {
			break
		}
		longest, from = max(longest, one.from-from), one.to
	}
	return max(longest, to-from)
}

func union(all ...spans) (merged spans) {
	sorted := slices.Concat(all...)
	slices.SortFunc(sorted, func(x, y span) int { return cmp.Compare(x.from, y.from) })
	for _, one := range sorted {
		if n := len(merged); n > 0 && one.from <= merged[n-1].to {
			merged[n-1].to = max(merged[n-1].to, one.to)
		} else {
			merged = append(merged, one)
		}
	}
	return merged
}
