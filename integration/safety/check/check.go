package check

import (
	"time"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// Violation is one breach of an invariant.
type Violation struct {
	Invariant string // "I1" to "I8"
	Checker   string // that found it
	Name      string // of the lock, election or resource
	Text      string
	Events    []history.Event // the evidence
}

// Count is a number of things that a checker looked at. A count of 0 shows that a checker had nothing to check.
type Count struct {
	What string
	N    int64
}

// Report is the result of all checkers.
type Report struct {
	Violations []Violation
	More       int      // violations beyond the first 20 of each checker and invariant
	Malformed  []string // why no run can have written this history; at most 20 reasons
	Counts     []Count
	Faults     map[string]int // how often each fault was on, by name
	Idle       time.Duration  // the longest time without faults in which a name had waiters and no holder
	Span       time.Duration  // from the first event to the last
}

// Count returns the number of the line of Counts with that text, 0 if there is no such line.
func (r *Report) Count(what string) int64 {
	for _, c := range r.Counts {
		if c.What == what {
			return c.N
		}
	}
	return 0
}

// Check runs all checkers on a history. The events are in the order of the file and are not changed.
func Check(events []history.Event) Report {
	c := &checker{kept: map[string]int{}}
	c.report.Faults = map[string]int{}
	c.book = c.newBook(events)
	c.readWatch()
	c.excuse()
	for _, look := range []func(){
		c.marks, c.controls, c.tokenOrder, c.watchedTokens, c.deletions, c.leftovers, c.intervals, c.counts, c.returns, c.deadlines, c.prompt,
		c.updates, c.requestOutcomes, c.registers, c.progress, c.order, c.observers, c.sights,
	} {
		look()
	}
	return c.report
}

// checker is one call of Check.
type checker struct {
	ttl    time.Duration // the longest that was granted; 0: not known, so waiting times and deadlines are not judged
	report Report
	kept   map[string]int // violations, by checker and invariant
	*book
}

const most = 20

func (c *checker) violation(v Violation) {
	class := v.Checker + v.Invariant
	if c.kept[class]++; c.kept[class] > most {
		c.report.More++
		return
	}
	c.report.Violations = append(c.report.Violations, v)
}

func (c *checker) malformed(text string) {
	if len(c.report.Malformed) < most {
		c.report.Malformed = append(c.report.Malformed, text)
	}
}

func (c *checker) count(what string, n int) {
	c.report.Counts = append(c.report.Counts, Count{what, int64(n)})
}

// show collects the events of a violation. Nil ones are left out.
func show(events ...*history.Event) []history.Event {
	var all []history.Event
	for _, e := range events {
		if e != nil {
			all = append(all, *e)
		}
	}
	return all
}
