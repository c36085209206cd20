package check

import (
	"slices"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// requestOutcomes checks I5, and I4 for single requests: what the resource did fits the answer, and was done between
// the request and the answer. So the resource's record is an order that explains what the callers saw, and no search
// for another order is needed.
func (c *checker) requestOutcomes() {
	var unknown, unknownDone, unsent int
	for _, q := range c.requests {
		var done []*history.Event
		for _, e := range q.applied {
			if e.Outcome == history.OK {
				done = append(done, e)
			}
		}
		if len(done) > 1 && updates(done[0].Verb) { // claims and reads may be applied repeatedly
			c.bad("I5", done[0].Name, show(done...), "request %d was applied %d times", done[0].Request, len(done))
		}
		if q.send == nil { // the process was killed before the record of the request was on disk
			if len(done) > 0 {
				unsent++
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
		case slices.ContainsFunc(done, func(e *history.Event) bool {
			return e.At < q.send.At || outcome == history.OK && e.At > q.answer.At
		}):
			bad("I4", "%s was not applied between its request and its answer", q.send.Verb)
		case outcome == history.Unknown:
			unknown++
			if len(done) > 0 {
				unknownDone++
			}
		case outcome == history.OK && len(done) == 0:
			bad("I4", "%s was acknowledged but not applied", q.send.Verb)
		case outcome == history.OK && q.send.Verb.Reads() && done[0].Value != q.answer.Value:
			bad("I4", "the resource read %q, but the answer was %q", done[0].Value, q.answer.Value)
		case outcome != history.OK && len(done) > 0 && updates(q.send.Verb):
			bad("I5", "%s was answered %q but applied", q.send.Verb, outcome)
		}
	}
	c.count("requests", len(c.requests))
	c.count(Unknown, unknown)
	c.count("  applied", unknownDone)
	c.count("requests applied but not recorded by their sender", unsent)
}

func updates(v history.Verb) bool {
	return v == history.Write || v == history.Add || v == history.Increment
}
