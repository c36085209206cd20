package check

import (
	"cmp"
	"slices"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// observers checks that no observer goes back to a lower token, that the key of each leader that it saw was first in
// its queue, as far as the watch saw the key, and that it missed no leader, nor that nobody led. Leaders follow each other
// in the order of their revisions, so a leader whose revision lies between those of two that an observer saw led between
// these two. Nobody led if the first of them had ended before the second came. At the end, each observer has seen the last
// leader since the faults have healed, and that nobody leads.
func (c *checker) observers() {
	w := &c.watch
	led := map[string][]*key{} // by queue, in order
	for _, k := range w.all {
		if k.first {
			led[queueOf(k.put.Key)] = append(led[queueOf(k.put.Key)], k)
		}
	}
	var compactions spans
	for _, f := range c.faults {
		if f.begin.Name == history.Compaction {
			compactions = append(compactions, span{f.begin.At, f.until()})
		}
	}
	type who struct{ actor, name string }
	highest, last := map[who]*history.Event{}, map[who]*history.Event{} // last: since the observer began
	latest := map[who]*history.Event{}                                  // of all, also without a leader
	for _, e := range c.observed {
		who := who{e.Actor, e.Name}
		if e.Outcome == history.Failed {
			delete(last, who)
		}
		before, previous, rev := last[who], latest[who], revision(e.Token)
		latest[who] = e
		if e.Token == 0 {
			continue // nobody leads, or the observer starts again
		}
		last[who] = e
		if old := highest[who]; old != nil && e.Token < old.Token {
			c.bad("I8", e.Name, show(old, e), "%s saw token %d after token %d", e.Actor, e.Token, old.Token)
			continue
		}
		highest[who] = e
		if k := w.keys[keyAt{e.Name + "/", rev}]; (k == nil || !k.first) && len(w.all) > 0 && (c.whole || rev <= w.highest) {
			c.bad("I8", e.Name, show(e), "%s saw token %d, whose key was never the first of the queue", e.Actor, e.Token)
		}
		if before == nil || rev == revision(before.Token) {
			continue
		}
		queue := led[e.Name+"/"]
		n, found := slices.BinarySearchFunc(queue, revision(before.Token), func(k *key, rev int64) int { return cmp.Compare(k.put.Created, rev) })
		// How late the observer saw the first leader is not known: answers may have taken seconds. So a compaction
		// excuses it from the time at which the first leader's key was put.
		if !found || compactions.touch(queue[n].put.At, e.At) {
			continue
		}
		c.n["changes of leaders compared with observers"]++
		if end := queue[n].ended(); end != nil && end.Revision < rev && previous.Token != 0 {
			c.bad("I8", e.Name, show(before, end, e),
				"%s saw token %d and then token %d, but not that nobody led in between", e.Actor, before.Token, e.Token)
		}
		for _, k := range queue[n+1:] {
			if k.put.Created >= rev {
				break
			}
			c.bad("I8", e.Name, show(before, k.put, k.del, e),
				"%s saw token %d and then token %d, but not the leader of revision %d", e.Actor, before.Token, e.Token, k.put.Created)
		}
	}
	c.n["changes seen by observers"] = len(c.observed)
	if !c.whole {
		return
	}
	for who, e := range latest { // at the end, after the faults
		seen, leaders := highest[who], c.granted[who.name]
		if n := len(leaders); n > 0 && leaders[n-1].grant.At > c.healed { // of keys whose acquisition failed it may see no more
			if last := leaders[n-1]; seen == nil || revision(seen.Token) < revision(last.token()) {
				c.bad("I8", who.name, show(seen, last.grant), "%s has not seen the last leader, of token %d", who.actor, last.token())
			}
		}
		if (e.Token != 0 || e.Outcome == history.Failed) && c.healed < forever {
			c.bad("I8", who.name, show(e), "%s does not see at the end that nobody leads", who.actor)
		}
	}
}
