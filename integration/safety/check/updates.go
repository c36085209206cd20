package check

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// value is what a resource holds, as far as its updates tell: the elements of a set, or one value.
type value struct {
	set     map[string]bool
	last    string
	updated *history.Event // the one that has set last
}

// apply brings in one event of the resource. It says what is wrong with it, if anything is.
func (v *value) apply(e *history.Event) (wrong string) {
	if e.Outcome != history.OK {
		return ""
	}
	switch e.Verb {
	case history.Add:
		if v.set == nil {
			v.set = map[string]bool{}
		}
		v.set[e.Value] = true
		v.updated = e
	case history.Increment:
		was, now := number(v.last), number(e.Value)
		if now != was+1 {
			wrong = fmt.Sprintf("an increment of %d set it to %d: the counter was at %d", now-1, now, was)
		}
		v.last, v.updated = e.Value, e
	case history.Write:
		v.last, v.updated = e.Value, e
	case history.Read, history.CheckRead:
		wrong = v.read(e)
	case history.Claim, history.ClaimRead:
	}
	return wrong
}

// read compares what was read with what was written.
func (v *value) read(e *history.Event) string {
	if v.set == nil {
		if e.Value != v.last && (v.last != "" || number(e.Value) != 0) {
			return fmt.Sprintf("%q was read, it is %q", e.Value, v.last)
		}
		return ""
	}
	got := elements(e.Value)
	for s := range v.set {
		if !got[s] {
			return fmt.Sprintf("element %q is lost", s)
		}
	}
	if len(got) > len(v.set) {
		return fmt.Sprintf("%d elements were read, it has %d", len(got), len(v.set))
	}
	return ""
}

// number of a counter; one that was never set is at 0.
func number(s string) int64 {
	n, err := strconv.ParseInt(cmp.Or(s, "0"), 10, 64)
	if err != nil {
		return -1 << 62 // far from every other
	}
	return n
}

func elements(s string) map[string]bool {
	all := map[string]bool{}
	for e := range strings.SplitSeq(s, ",") {
		if e != "" {
			all[e] = true
		}
	}
	return all
}

// updates checks I4 by what each resource has applied, in that order.
func (c *checker) updates() {
	updates := 0
	for _, r := range c.resources {
		if r.control {
			continue
		}
		v := value{}
		if r.set {
			v.set = map[string]bool{}
		}
		for _, e := range r.applied {
			last := v.updated
			if wrong := v.apply(e); wrong != "" {
				c.violation(Violation{"I4", "updates", r.name, wrong, show(last, e)})
			}
			if v.updated == e {
				updates++
			}
		}
	}
	c.count("updates applied", updates)
}

// readers checks I4 by what callers were told alone: what was acknowledged is found by whoever reads after that, and no
// two increments made the same number.
func (c *checker) readers() {
	acknowledged, reads := 0, 0
	for _, r := range c.resources {
		if r.control {
			continue
		}
		var done, read []*request
		counted := map[string]*request{}
		for _, q := range r.sent {
			if q.answer == nil || q.answer.Outcome != history.OK {
				continue
			}
			switch q.send.Verb {
			case history.Read, history.CheckRead:
				read = append(read, q)
			case history.Add:
				done = append(done, q)
			case history.Increment:
				acknowledged++
				if old := counted[q.send.Value]; old != nil {
					c.violation(Violation{
						"I4", "readers", r.name, fmt.Sprintf("two increments to %s were acknowledged", q.send.Value),
						show(old.send, old.answer, q.send, q.answer),
					})
				}
				counted[q.send.Value] = q
			default:
			}
		}
		acknowledged += len(done)
		reads += len(read)
		if r.set {
			c.elementsRead(r.name, done, read)
		}
	}
	c.count("acknowledged adds and increments", acknowledged)
	c.count("reads by callers", reads)
}

func (c *checker) elementsRead(name string, done, read []*request) {
	byAnswer := func(x, y *request) int { return cmp.Compare(x.answer.At, y.answer.At) }
	slices.SortStableFunc(done, byAnswer)
	slices.SortStableFunc(read, func(x, y *request) int { return cmp.Compare(x.send.At, y.send.At) })
	for _, q := range read {
		got := elements(q.answer.Value)
		for _, d := range before(done, q.send.At) {
			if !got[d.send.Value] {
				c.violation(Violation{
					"I4", "readers", name, fmt.Sprintf("element %q was acknowledged, and a later read does not find it", d.send.Value),
					show(d.send, d.answer, q.send, q.answer),
				})
				break // one for each read
			}
		}
	}
}

// before are those that were answered before t.
func before(done []*request, t time.Duration) []*request {
	n, _ := slices.BinarySearchFunc(done, t, func(q *request, t time.Duration) int { return cmp.Compare(q.answer.At, t) })
	return done[:n]
}
