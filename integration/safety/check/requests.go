package check

import (
	"fmt"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// requestOutcomes checks I5: the resource has done with each request what its writer was told.
func (c *checker) requestOutcomes() {
	logged := map[string]bool{} // resources that tell what they apply
	for _, r := range c.resources {
		logged[r.name] = len(r.applied) > 0
	}
	var unknown, unknownDone, unsent int
	for _, q := range c.requests {
		var done []*history.Event
		for _, e := range q.applied {
			if e.Outcome == history.OK {
				done = append(done, e)
			}
		}
		if q.send == nil { // its process was killed before it was recorded
			if len(done) > 0 {
				unsent++
			}
			c.twice(done)
			continue
		}
		c.twice(done)
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
			if logged[q.send.Name] {
				bad("I4", fmt.Sprintf("%s was acknowledged and not applied", q.send.Verb))
			}
		case outcome == history.OK && q.send.Verb.Reads() && done[0].Value != q.answer.Value:
			bad("I4", fmt.Sprintf("%q was read, and the reader was told %q", done[0].Value, q.answer.Value))
		case outcome != history.OK && len(done) > 0 && updates(q.send.Verb):
			bad("I5", fmt.Sprintf("%s was %s and applied all the same", q.send.Verb, outcome))
		}
	}
	c.count("requests", len(c.requests))
	c.count("requests of unknown outcome", unknown)
	c.count("  applied", unknownDone)
	c.count("requests applied and not on record", unsent)
}

// updates reports whether a verb changes what the resource holds.
func updates(v history.Verb) bool {
	return v == history.Write || v == history.Add || v == history.Increment
}

// twice reports an update that was applied more than once. Claims and reads may be repeated.
func (c *checker) twice(done []*history.Event) {
	if len(done) > 1 && updates(done[0].Verb) {
		c.violation(Violation{
			"I5", "requests", done[0].Name,
			fmt.Sprintf("request %d was applied %d times", done[0].Request, len(done)), show(done...),
		})
	}
}
