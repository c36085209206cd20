package check

import (
	"time"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// resource checks I1 and I4 for each resource, in the order of application. Nobody's token may be below the highest
// token of the writers, and no writer's below the highest of the readers. Each read must return what the updates before
// it have left. A read under a writer's token is not compared with the marks: a store may answer it without looking at
// the token.
func (c *checker) resource() {
	for _, r := range c.resources {
		if r.control {
			c.countStale(r)
			continue
		}
		tokens := map[fence.Token]bool{} // of all requests, since a mark may be seen before its request is recorded
		for _, e := range r.applied {
			tokens[e.Token] = true
		}
		v := value{}
		var writer, reader *history.Event // with the highest token that was accepted
		var now time.Duration
		for _, e := range r.applied {
			what := "accepted claims"
			if e.Verb.Updates() {
				what = Accepted
			}
			switch {
			case e.Outcome == history.Refused:
				what = c.refused(r.name, e, writer, reader)
				if e.At > c.restored {
					c.n[RefusedAfter]++
				}
				if c.whole && e.Highest != 0 && !tokens[e.Highest] {
					c.bad("I1", r.name, show(writer, e), "token %d was refused for the mark %d, which is nobody's token", e.Token, e.Highest)
				}
			case e.Outcome != history.OK:
				what = "failed"
			case e.Verb == history.Read:
				what = "reads"
			case !e.Token.Valid():
				c.bad("I1", r.name, show(writer, e), "%s without a token was accepted", e.Verb)
			case above(e, writer):
				c.bad("I1", r.name, show(writer, e), "%s with token %d was accepted after token %d", e.Verb, e.Token, writer.Token)
			case !e.Verb.OfReader() && above(e, reader):
				c.bad("I1", r.name, show(reader, e), "%s with token %d was accepted after the reader's token %d", e.Verb, e.Token, reader.Token)
			case e.Verb.OfReader():
				what = "accepted claims and reads of readers"
				if reader == nil || e.Token > reader.Token {
					reader = e
				}
			default:
				writer = e
			}
			c.n[what]++
			if e.Outcome == history.OK {
				if e.At < now {
					c.malformed("the record of %q is not in the order of time", r.name)
				}
				now = e.At
			}
			last := v.updated
			if wrong := v.apply(e); wrong != "" {
				c.bad("I4", r.name, show(last, e), "%s", wrong)
			}
		}
	}
}

// above reports whether a mark is above the event's token. The mark may be nil.
func above(e, mark *history.Event) bool { return mark != nil && e.Token < mark.Token }

// refused checks that a refused token is below the mark that the resource had then, and returns what to count.
func (c *checker) refused(name string, e, writer, reader *history.Event) string {
	if e.Highest != 0 && e.Highest <= e.Token {
		c.bad("I1", name, show(writer, e), "token %d was refused, but the mark was %d", e.Token, e.Highest)
	}
	switch {
	case e.Verb.OfReader():
		return RefusedReaders
	case !e.Verb.Updates():
		return refusedOthers
	case above(e, reader) && !above(e, writer):
		c.n[RefusedForReaders]++
	}
	return Refused
}

// countStale counts the stale and the lost updates of a resource that does not look at tokens.
func (c *checker) countStale(r *resource) {
	highest, v := &history.Event{}, value{}
	for _, e := range r.applied {
		c.n["updates of unfenced controls"]++
		if above(e, highest) {
			c.n[ControlStale]++
			if e.At > c.restored {
				c.n[ControlAfter]++
			}
		} else {
			highest = e
		}
		if v.apply(e) != "" {
			c.n["updates of unfenced controls that undid another"]++
		}
	}
}
