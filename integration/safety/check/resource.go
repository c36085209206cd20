package check

import (
	"fmt"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// marks checks I1: each resource is gone through in the order of application. Reads do not raise the mark and are
// not held to it: a store may answer them unchecked.
func (c *checker) marks() {
	var accepted, refused, reads int
	for _, r := range c.resources {
		if r.control {
			continue
		}
		var highest *history.Event
		for _, e := range r.applied {
			switch {
			case e.Verb == history.Read:
				reads++
			case e.Outcome == history.Refused:
				refused++
				c.refusal(r.name, e, highest)
			case e.Outcome != history.OK:
			case !e.Token.Valid():
				c.violation(Violation{
					"I1", "resource", r.name, fmt.Sprintf("%s without a token was accepted", e.Verb), show(highest, e),
				})
			case highest != nil && e.Token < highest.Token:
				c.violation(Violation{
					"I1", "resource", r.name,
					fmt.Sprintf("%s with token %d was accepted after token %d", e.Verb, e.Token, highest.Token), show(highest, e),
				})
			default:
				accepted++
				if highest == nil || e.Token > highest.Token {
					highest = e
				}
			}
		}
	}
	c.count("accepted claims and updates", accepted)
	c.count("refused as stale", refused)
	c.count("reads", reads)
}

// controls counts what went wrong where nobody looks at tokens.
func (c *checker) controls() {
	var updates, stale, lost int
	for _, r := range c.resources {
		if !r.control {
			continue
		}
		var highest fence.Token
		var v value
		for _, e := range r.applied {
			updates++
			if e.Token < highest {
				stale++
			}
			highest = max(highest, e.Token)
			if v.apply(e) != "" {
				lost++
			}
		}
	}
	c.count("updates of unfenced controls", updates)
	c.count("  stale", stale)
	c.count("  that undid another", lost)
}

// refusal checks that a token was refused for what the resource had seen by then.
func (c *checker) refusal(name string, e, highest *history.Event) {
	if e.Highest != 0 && e.Highest <= e.Token {
		c.violation(Violation{
			"I1", "resource", name,
			fmt.Sprintf("token %d was refused, the mark was %d", e.Token, e.Highest), show(highest, e),
		})
	}
}
