package check

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// observers checks that no observer goes back to a lower token, and that the key of each leader that it saw was first
// in its queue, as far as the watch saw the key.
func (c *checker) observers() {
	type who struct{ actor, name string }
	highest := map[who]*history.Event{}
	w := &c.watch
	for _, e := range c.observed {
		if e.Token == 0 {
			continue // nobody leads, or the observer starts again
		}
		seen := who{e.Actor, e.Name}
		if old := highest[seen]; old != nil && e.Token < old.Token {
			c.violation(Violation{
				"I8", "observers", e.Name, fmt.Sprintf("%s saw token %d after token %d", e.Actor, e.Token, old.Token), show(old, e),
			})
			continue
		}
		highest[seen] = e
		rev := revision(e.Token)
		if len(w.all) == 0 || !c.whole && rev > w.highest {
			continue
		}
		if k := w.keys[keyAt{e.Name + "/", rev}]; k == nil || !k.first {
			c.violation(Violation{
				"I8", "observers", e.Name, fmt.Sprintf("%s saw token %d, whose key was never the first of the queue", e.Actor, e.Token), show(e),
			})
		}
	}
	c.count("changes seen by observers", len(c.observed))
}

// sights checks that observers miss no leader. Leaders follow each other in the order of their revisions, so a leader
// whose revision lies between those of two that an observer saw led between these two.
func (c *checker) sights() {
	led := map[string][]*key{} // by queue, in order
	for _, k := range c.watch.all {
		if k.first {
			led[queueOf(k.put.Key)] = append(led[queueOf(k.put.Key)], k)
		}
	}
	for _, keys := range led {
		slices.SortStableFunc(keys, func(x, y *key) int { return cmp.Compare(x.put.Created, y.put.Created) })
	}
	var compactions spans
	for _, f := range c.faults {
		if f.begin.Name == history.Compaction {
			compactions = append(compactions, span{f.begin.At, f.until()})
		}
	}
	type who struct{ actor, name string }
	last := map[who]*history.Event{}
	compared := 0
	for _, e := range c.observed {
		w := who{e.Actor, e.Name}
		before := last[w]
		switch {
		case e.Outcome == history.Failed:
			delete(last, w)
			continue
		case e.Token == 0:
			continue
		}
		last[w] = e
		if before == nil || revision(e.Token) <= revision(before.Token) {
			continue
		}
		queue := led[e.Name+"/"]
		from, found := slices.BinarySearchFunc(queue, revision(before.Token), func(k *key, rev int64) int { return cmp.Compare(k.put.Created, rev) })
		// How late the observer saw the first leader is not known: answers may have taken seconds. So a compaction
		// excuses it from the time at which the first leader's key was put.
		if !found || compactions.touch(queue[from].put.At, e.At) {
			continue
		}
		for _, k := range queue[from+1:] {
			if k.put.Created >= revision(e.Token) {
				compared++
				break
			}
			c.violation(Violation{
				"I8", "sights", e.Name,
				fmt.Sprintf("%s saw token %d and then token %d, but not the leader of revision %d", e.Actor, before.Token, e.Token, k.put.Created),
				show(before, k.put, k.del, e),
			})
		}
	}
	c.count("changes of leaders compared with observers", compared)
}
