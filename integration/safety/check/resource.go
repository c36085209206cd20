package check

import (
	"fmt"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// marks checks I1, for each resource in the order of application. Nobody's token may be below the highest token of the
// writers, and no writer's below the highest of the readers. A read under a writer's token is neither checked nor
// counted as accepted: a store may answer it without looking at the token.
func (c *checker) marks() {
	var accepted, refused, reads, shared, staleReaders, byReaders int
	for _, r := range c.resources {
		if r.control {
			continue
		}
		var highest, reader *history.Event
		for _, e := range r.applied {
			switch {
			case e.Verb == history.Read:
				reads++
			case e.Outcome == history.Refused:
				refused++
				if e.Verb.OfReader() {
					staleReaders++
				} else if above(e, reader) && !above(e, highest) {
					byReaders++
				}
				c.refusal(r.name, e, highest)
			case e.Outcome != history.OK:
			case !e.Token.Valid():
				c.violation(Violation{
					"I1", "resource", r.name, fmt.Sprintf("%s without a token was accepted", e.Verb), show(highest, e),
				})
			case above(e, highest):
				c.violation(Violation{
					"I1", "resource", r.name,
					fmt.Sprintf("%s with token %d was accepted after token %d", e.Verb, e.Token, highest.Token), show(highest, e),
				})
			case !e.Verb.OfReader() && above(e, reader):
				c.violation(Violation{
					"I1", "resource", r.name,
					fmt.Sprintf("%s with token %d was accepted after the reader's token %d", e.Verb, e.Token, reader.Token), show(reader, e),
				})
			case e.Verb.OfReader():
				shared++
				if reader == nil || e.Token > reader.Token {
					reader = e
				}
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
	c.count("  of readers", staleReaders)
	c.count("  of writers, by a reader's token", byReaders)
	c.count("reads", reads)
	c.count("accepted claims and reads of readers", shared)
}

// above reports whether a mark is above the event's token. The mark may be nil.
func above(e, mark *history.Event) bool { return mark != nil && e.Token < mark.Token }

// controls counts the stale and the lost updates of the resources that do not look at tokens.
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

// refusal checks that a refused token is below the mark that the resource had then.
func (c *checker) refusal(name string, e, highest *history.Event) {
	if e.Highest != 0 && e.Highest <= e.Token {
		c.violation(Violation{
			"I1", "resource", name,
			fmt.Sprintf("token %d was refused, but the mark was %d", e.Token, e.Highest), show(highest, e),
		})
	}
}
