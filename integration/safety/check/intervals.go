package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// tenure is the interval in which a handle is known to be live.
type tenure struct {
	from, to time.Duration
	*acquisition
}

// tenures are those of each name, by their beginning.
func (b *book) tenures() map[string][]tenure {
	all := map[string][]tenure{}
	for _, a := range b.ops {
		if from, to, ok := a.live(); ok {
			all[a.name()] = append(all[a.name()], tenure{from, to, a})
		}
	}
	for _, name := range all {
		slices.SortStableFunc(name, func(x, y tenure) int { return cmp.Compare(x.from, y.from) })
	}
	return all
}

// exclusion is the invariant that handles of the name come under.
func (b *book) exclusion(name string) string {
	if b.elections[name] {
		return "I8"
	}
	return "I3"
}

// extremes are the interval that ends last and the one with the highest token, of some.
type extremes struct{ longest, highest tenure }

func (x *extremes) add(t tenure) {
	if x.longest.acquisition == nil || t.to > x.longest.to {
		x.longest = t
	}
	if x.highest.acquisition == nil || t.token() > x.highest.token() {
		x.highest = t
	}
}

// intervals checks I3 and the first half of I8, and that tokens increase from interval to interval. Two readers are not compared.
func (c *checker) intervals() {
	looked := 0
	for name, all := range c.tenures() {
		looked += len(all)
		var everybody, writers extremes
		for _, t := range all {
			rivals := everybody
			if t.shared() {
				rivals = writers
			}
			longest, highest := rivals.longest, rivals.highest
			switch {
			case longest.acquisition == nil: // there was none
			case t.from < longest.to: // where one ends when the other begins they have only met
				c.violation(Violation{
					c.exclusion(name), "intervals", name,
					fmt.Sprintf("tokens %d and %d were live at the same time, for %v at least",
						longest.token(), t.token(), min(longest.to, t.to)-t.from),
					show(longest.grant, t.grant, t.lastLive, longest.lastLive),
				})
			case t.token() <= highest.token():
				c.violation(Violation{
					"I2", "intervals", name, fmt.Sprintf("token %d was live after token %d", t.token(), highest.token()),
					show(highest.grant, highest.lastLive, t.grant, t.lastLive),
				})
			}
			everybody.add(t)
			if !t.shared() {
				writers.add(t)
			}
		}
	}
	for _, a := range c.ops {
		c.afterlife(a)
	}
	c.count("live intervals compared", looked)
}

// afterlife checks that a handle that has ended stays so.
func (c *checker) afterlife(a *acquisition) {
	if a.lastLive == nil {
		return
	}
	bad := func(text string) {
		c.violation(Violation{
			c.exclusion(a.name()), "intervals", a.name(), text, show(a.enter, a.grant, a.lost, a.released, a.lastLive),
		})
	}
	switch {
	case a.grant == nil:
		bad("a handle was live and never granted")
	case a.lost != nil && a.lastLive.At > a.lost.At:
		bad(fmt.Sprintf("the handle of token %d was live after it was lost", a.token()))
	case a.released != nil && a.lastLive.At > a.released.At:
		bad(fmt.Sprintf("the handle of token %d was live after it was released", a.token()))
	}
}
