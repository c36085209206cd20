package check

import (
	"fmt"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// observers checks the second half of I8. Whom an observer names must have been first in the queue, where the watch tells.
func (c *checker) observers() {
	type who struct{ actor, name string }
	highest := map[who]*history.Event{}
	w := &c.watch
	for _, e := range c.observed {
		if e.Token == 0 {
			continue
		}
		seen := who{e.Actor, e.Name}
		if old := highest[seen]; old != nil && e.Token < old.Token {
			c.violation(Violation{
				"I8", "observers", e.Name, fmt.Sprintf("%s saw token %d after %d", e.Actor, e.Token, old.Token), show(old, e),
			})
			continue
		}
		highest[seen] = e
		rev := revision(e.Token)
		if len(w.all) == 0 || !c.whole && rev > w.highest {
			continue
		}
		if k := w.keys[keyAt{c.opts.Prefix + e.Name + "/", rev}]; k == nil || !k.first {
			c.violation(Violation{
				"I8", "observers", e.Name, fmt.Sprintf("%s saw token %d, whose key was never the first of the queue", e.Actor, e.Token), show(e),
			})
		}
	}
	c.count("changes seen by observers", len(c.observed))
}
