package check

import (
	"fmt"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// requestOutcomes checks I5, and I4 for single requests: what the resource did fits the answer.
func (c *checker) requestOutcomes() {
	var unknown, unknownDone, unsent int
	for _, q := range c.requests {
		var done []*history.Event
		for _, e := range q.applied {
			if e.Outcome == history.OK {
				done = append(done, e)
			}
		}
		c.twice(done)
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
		bad := func(invariant, text string) {
			c.violation(Violation{invariant, "requests", q.send.Name, text, append(show(q.send, q.answer), show(done...)...)})
		}
		switch {
		case outcome == history.Unknown:
			unknown++
			if len(done) > 0 {
				unknownDone++
			}
		case outcome == history.OK && len(done) == 0:
			if len(c.byName[q.send.Name].applied) > 0 { // not every resource records what it applies
				bad("I4", fmt.Sprintf("%s was acknowledged but not applied", q.send.Verb))
			}
		case outcome == history.OK && q.send.Verb.Reads() && done[0].Value != q.answer.Value:
			bad("I4", fmt.Sprintf("the resource read %q, but the answer was %q", done[0].Value, q.answer.Value))
		case outcome != history.OK && len(done) > 0 && updates(q.send.Verb):
			bad("I5", fmt.Sprintf("%s was answered %q but applied", q.send.Verb, outcome))
		}
	}
	c.count("requests", len(c.requests))
	c.count("requests of unknown outcome", unknown)
	c.count("  applied", unknownDone)
	c.count("requests applied but not recorded by their sender", unsent)
}

// updates reports whether a verb changes what the resource holds.
func updates(v history.Verb) bool {
	return v == history.Write || v == history.Add || v == history.Increment
}

// twice reports an update that was applied more than once. Claims and reads may be applied repeatedly.
func (c *checker) twice(done []*history.Event) {
	if len(done) > 1 && updates(done[0].Verb) {
		c.violation(Violation{
			"I5", "requests", done[0].Name,
			fmt.Sprintf("request %d was applied %d times", done[0].Request, len(done)), show(done...),
		})
	}
}
