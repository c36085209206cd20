package check

import (
	"strconv"
	"strings"
	"time"

	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

const (
	promptly  = time.Second            // within which a handle ends after an operator took its key
	unwatched = 250 * time.Millisecond // how long a handle's key is not watched: see the doc of package lease
)

// excuse finds the keys that operators took, and the handles that lost their keys this way.
func (c *checker) excuse() {
	// The last revision at which keys of each lease were deleted. A revocation that took keys is the last.
	last := map[int64]int64{}
	for _, k := range c.watch.all {
		if k.del != nil {
			last[k.lease] = max(last[k.lease], k.del.Revision)
		}
	}
	for _, k := range c.watch.all {
		if k.ended() == nil {
			continue
		}
		if k.ended().Revision == last[k.lease] {
			k.by = c.takenBy(strconv.FormatInt(k.lease, 16), k)
		}
		if k.by == nil {
			k.by = c.takenBy(k.put.Key, k)
		}
		if k.by != nil {
			c.n["keys taken by operators"]++
		}
	}
	for _, a := range c.ops {
		if k := a.key; k != nil && k.by != nil {
			a.excused, a.gone = k.by.begin.At, k.ended()
			k.by.hit = k.by.end != nil && k.by.end.Revision != 0
		}
	}
}

// takenBy finds the operator's fault with that target, the key or its lease, that ended the key; nil if none did.
func (c *checker) takenBy(target string, k *key) *disturbance {
	for _, f := range c.faults {
		if f.begin.Target != target || !f.operator() {
			continue
		}
		if f.end != nil && f.end.Revision != 0 {
			if f.end.Revision == k.ended().Revision {
				return f
			}
			continue
		}
		// A request that has failed may be carried out a moment later. When the key was put is not known well enough: the
		// watch lags while its member is stopped.
		if f.begin.At <= k.ended().At && k.asked <= f.until()+promptly {
			return f
		}
	}
	return nil
}

// deleted checks I6: only operators delete a key or take it off its lease while its handle is live.
func (c *checker) deleted(a *acquisition) {
	k := a.key
	if k == nil || k.ended() == nil {
		return
	}
	c.n["deletions compared with handles"]++
	bad := func(what string, later *history.Event) {
		c.bad("I6", a.name(), show(k.put, a.grant, k.ended(), later), "key %q was %s, but not by an operator", k.put.Key, what)
	}
	switch {
	case k.by != nil:
	case k.off != nil:
		bad("taken off its lease", nil)
	case a.lastLive != nil && a.lastLive.At > k.del.At:
		bad("deleted while its handle was live", a.lastLive)
	case a.lost != nil && strings.Contains(a.lost.Error, lease.ReasonKeyDeleted.String()) && !a.operated():
		bad("deleted under its handle", a.lost)
	}
}

// deletedWaiting checks I6: an acquisition does not fail because its key was taken, unless an operator took it.
func (c *checker) deletedWaiting(a *acquisition) {
	if a != a.parts[0] || a.grant != nil || a.giveUp == nil {
		return
	}
	if r := reasonIn(a.giveUp.Error); r != lease.ReasonKeyDeleted && r != lease.ReasonKeyOverwritten {
		return
	}
	for _, f := range c.faults {
		if f.operator() && !f.hit && f.begin.At <= a.giveUp.At && f.until() >= a.enter.At-promptly && hit(f.begin.Target, a) {
			return
		}
	}
	c.bad("I6", a.name(), show(a.enter, a.giveUp), "the key of a waiter was taken, but not by an operator")
}

// hit reports whether an operator's target is what a lost: the lease that its error names, or a key on that lease in
// one of its queues.
func hit(target string, a *acquisition) bool {
	for _, part := range a.parts {
		if strings.HasPrefix(target, part.name()+"/") {
			key := strings.TrimPrefix(target[len(queueOf(target)):], readers)
			target, _, _ = strings.Cut(key, "-")
			break
		}
	}
	return strings.Contains(a.giveUp.Error, "(lease "+target+")")
}

// prompt checks I3: a handle ends soon after an operator has taken its key.
func (c *checker) prompt(a *acquisition) {
	if a.gone == nil {
		return
	}
	c.n["handles that lost their key to an operator"]++
	if a.lastLive == nil {
		return
	}
	if limit := c.limit(max(a.gone.At, a.grant.At+unwatched)+promptly, a.enter.Client()); a.lastLive.At > limit {
		c.bad("I3", a.name(), show(a.grant, a.gone, a.lastLive),
			"an operator has taken key %q, and its handle was live %v after that, want at most %v",
			a.gone.Key, a.lastLive.At-a.gone.At, limit-a.gone.At)
	}
}

// limit returns t or, if faults that are not aimed at another client are on then or were on shortly before, one second
// and a TTL after the last of them has healed.
func (c *checker) limit(t time.Duration, client string) time.Duration {
	for _, f := range c.faults { // in the order of their beginning
		elsewhere := f.begin.Target != client && c.clients[f.begin.Target]
		if !elsewhere && !f.operator() && f.begin.At <= t {
			t = max(t, min(f.until(), c.last)+c.ttl+promptly)
		}
	}
	return t
}
