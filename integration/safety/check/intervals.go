package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// exclusion returns the invariant that forbids two live handles of the name.
func (b *book) exclusion(name string) string {
	if b.elections[name] {
		return "I8"
	}
	return "I3"
}

// intervals checks I3, and I8 for elections: a handle is not live after a handle with a higher token was granted,
// unless both are readers. That is enough to prove mutual exclusion. The tokens are the order of the grants, as
// tokenOrder checks, so no search for another order is needed.
func (c *checker) intervals() {
	names := map[string][]*acquisition{}
	for _, a := range c.ops {
		if a.grant != nil {
			names[a.name()] = append(names[a.name()], a)
		}
	}
	looked := 0
	for name, all := range names {
		slices.SortStableFunc(all, func(x, y *acquisition) int { return cmp.Compare(x.token(), y.token()) })
		var writer, anybody *acquisition // the first that was granted, of those with higher tokens
		for _, a := range slices.Backward(all) {
			rival := anybody
			if a.shared() {
				rival = writer
			}
			to, live := a.live()
			if live {
				looked++
			}
			if live && rival != nil && rival.token() != a.token() && to > rival.grant.At {
				c.overlap(name, a, rival, to-rival.grant.At)
			}
			if !a.owned() {
				continue
			}
			anybody = earlier(anybody, a)
			if !a.shared() {
				writer = earlier(writer, a)
			}
		}
	}
	for _, a := range c.ops {
		c.afterlife(a)
	}
	c.count("live intervals compared", looked)
}

func (c *checker) overlap(name string, a, rival *acquisition, by time.Duration) {
	invariant := c.exclusion(name)
	if a.grant.At > rival.grant.At {
		invariant = "I2"
	}
	c.violation(Violation{
		invariant, "intervals", name,
		fmt.Sprintf("token %d was live %v after token %d was granted", a.token(), by, rival.token()),
		show(a.grant, rival.grant, a.lastLive, rival.lastLive),
	})
}

// earlier returns the acquisition that was granted first. x may be nil.
func earlier(x, y *acquisition) *acquisition {
	if x == nil || y.grant.At < x.grant.At {
		return y
	}
	return x
}

// afterlife checks that a handle that has ended does not become live again.
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
		bad("a handle was live but never granted")
	case a.lost != nil && a.lastLive.At > a.lost.At:
		bad(fmt.Sprintf("the handle of token %d was live after it was lost", a.token()))
	case a.released != nil && a.lastLive.At > a.released.At:
		bad(fmt.Sprintf("the handle of token %d was live after it was released", a.token()))
	}
}
