package check

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
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

// value is what a resource must hold after its updates. A set's elements are separated by commas.
type value struct {
	now     string
	updated *history.Event // the last update
}

// apply applies one event of the resource. It returns what is wrong with the event, "" if nothing is.
func (v *value) apply(e *history.Event) (wrong string) {
	if e.Outcome != history.OK {
		return ""
	}
	if e.Verb.Reads() {
		if e.Value != v.now && (v.now != "" || e.Value != "0") { // a counter that was never set is at 0
			wrong = fmt.Sprintf("a read returned %q, but the value is %q", e.Value, v.now)
		}
		return wrong
	}
	switch e.Verb {
	case history.Claim, history.ClaimRead:
		return ""
	case history.Add:
		v.now = strings.TrimPrefix(v.now+","+e.Value, ",")
	case history.Increment:
		was, err := strconv.ParseInt(cmp.Or(v.now, "0"), 10, 64)
		if err != nil || e.Value != strconv.FormatInt(was+1, 10) {
			wrong = fmt.Sprintf("an increment set the counter to %q, which was at %q", e.Value, v.now)
		}
		v.now = e.Value
	default:
		v.now = e.Value
	}
	v.updated = e
	return wrong
}

// requestOutcomes checks I5, and I4 for single requests: what the resource did is what was asked for, fits the answer,
// and was done between the request and the answer. So the resource's record is an order that explains what the callers
// saw, and no search for another order is needed.
func (c *checker) requestOutcomes() {
	for _, q := range c.requests {
		var done []*history.Event
		for _, e := range q.applied {
			if e.Outcome == history.OK {
				done = append(done, e)
			}
		}
		if len(done) > 1 && done[0].Verb.Updates() { // claims and reads may be applied repeatedly
			c.bad("I5", done[0].Name, show(done...), "request %d was applied %d times", done[0].Request, len(done))
		}
		if q.send == nil {
			if len(q.applied) > 0 { // a request is recorded before it is sent, even by a process that is killed
				c.bad("I4", q.applied[0].Name, show(q.applied...), "request %d arrived, but nobody has sent it", q.applied[0].Request)
			}
			continue
		}
		outcome := history.Unknown
		if q.answer != nil {
			outcome = q.answer.Outcome
		}
		bad := func(invariant, format string, args ...any) {
			c.bad(invariant, q.send.Name, append(show(q.send, q.answer), show(done...)...), format, args...)
		}
		switch {
		case slices.ContainsFunc(q.applied, func(e *history.Event) bool { return !q.asksFor(e) }):
			c.bad("I4", q.send.Name, show(append(q.applied, q.send)...), "request %d arrived as something else than was sent", q.send.Request)
		case slices.ContainsFunc(done, func(e *history.Event) bool {
			return e.At < q.send.At || outcome == history.OK && e.At > q.answer.At
		}):
			bad("I4", "%s was not applied between its request and its answer", q.send.Verb)
		case outcome == history.Unknown:
			c.n[Unknown]++
			if len(done) > 0 {
				c.n[Unknown+" that were applied"]++
			}
		case outcome == history.OK && len(done) == 0:
			bad("I4", "%s was acknowledged but not applied", q.send.Verb)
		case outcome == history.OK && q.send.Verb.Reads() && done[0].Value != q.answer.Value:
			bad("I4", "the resource read %q, but the answer was %q", done[0].Value, q.answer.Value)
		case outcome != history.OK && len(done) > 0 && q.send.Verb.Updates():
			bad("I5", "%s was answered %q but applied", q.send.Verb, outcome)
		case outcome == history.Refused && len(done) == len(q.applied):
			bad("I4", "%s was answered %q, but the resource has not refused it", q.send.Verb, outcome)
		}
	}
	c.n["requests"] = len(c.requests)
}

// asksFor reports whether what the resource has recorded is the request that was sent.
func (q *request) asksFor(e *history.Event) bool {
	s := q.send
	return e.Name == s.Name && e.Verb == s.Verb && e.Token == s.Token && (e.Value == s.Value || !s.Verb.Updates())
}
