package check

import (
	"slices"

	"github.com/leasefence/leasefence/integration/safety/history"
)

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
