package check

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// window is the least number of requests that porcupine gets at once, if the history can be cut there.
const window = 100

// searching bounds porcupine's time for each window. A window that takes longer is counted as undecided.
const searching = 10 * time.Second

// access is a read or an update of a register or a counter.
type access struct {
	verb  history.Verb
	value string // read or written
	blind bool   // the writer does not know the outcome
	req   *request
}

// registerModel is one value, at first that of the parameter. A counter returns 0 for an empty value.
func registerModel(first string) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return first },
		Step: func(state, input, _ any) (bool, any) {
			now, in := state.(string), input.(access)
			switch {
			case in.verb.Reads():
				return in.value == now || now == "" && in.value == "0", now
			case in.verb == history.Increment && !in.blind:
				return number(in.value) == number(now)+1, in.value
			default:
				return true, in.value
			}
		},
	}
}

// registers gives each register and counter to porcupine, as its callers saw it. The history is cut after an access
// that overlaps with no other: the register then holds the value that was read or written.
func (c *checker) registers() {
	windows, undecided, accesses := 0, 0, 0
	for _, r := range c.resources {
		if r.control || r.set {
			continue
		}
		first := ""
		all := r.accesses()
		accesses += len(all)
		for len(all) > 0 {
			n := cutRegister(all)
			windows++
			switch porcupine.CheckOperationsTimeout(registerModel(first), all[:n], searching) {
			case porcupine.Unknown:
				undecided++
			case porcupine.Illegal:
				c.notARegister(r.name, all[:n])
			default:
			}
			first, all = all[n-1].Input.(access).value, all[n:]
		}
	}
	c.count("accesses to registers", accesses)
	c.count("windows of registers for porcupine", windows)
	c.count("  undecided", undecided)
}

// accesses returns the requests that were or may have been carried out, by the time at which they were sent.
func (r *resource) accesses() []porcupine.Operation {
	var all []porcupine.Operation
	for _, q := range r.sent {
		if q.send.Verb.Claims() {
			continue
		}
		op := porcupine.Operation{Call: int64(q.send.At), Input: access{q.send.Verb, q.send.Value, false, q}}
		switch {
		case q.answer != nil && q.answer.Outcome == history.OK:
			op.Return = int64(q.answer.At)
			if q.send.Verb.Reads() {
				op.Input = access{history.Read, q.answer.Value, false, q}
			}
		case q.answer != nil && q.answer.Outcome != history.Unknown, q.send.Verb.Reads():
			continue
		default:
			done := r.done(q)
			if done == forever && len(r.applied) > 0 { // the resource records what it applies, and this is not there
				continue
			}
			op.Return, op.Input = int64(done), access{q.send.Verb, q.send.Value, true, q}
		}
		op.Return = max(op.Return, op.Call)
		all = append(all, op)
	}
	slices.SortStableFunc(all, func(x, y porcupine.Operation) int { return cmp.Compare(x.Call, y.Call) })
	return all
}

// done returns when the resource carried out a request of unknown outcome, forever if that is not known either.
func (r *resource) done(q *request) time.Duration {
	for _, e := range q.applied {
		if e.Outcome == history.OK {
			return e.At
		}
	}
	return forever
}

// cutRegister returns the number of accesses in the next window.
func cutRegister(all []porcupine.Operation) int {
	latest := int64(math.MinInt64) // when the last of the accesses before the n-th ended
	for n, op := range all {
		alone := op.Call > latest && (n == len(all)-1 || op.Return < all[n+1].Call)
		if alone && n+1 >= window {
			return n + 1
		}
		latest = max(latest, op.Return)
	}
	return len(all)
}

// notARegister reports a window, with its last ten requests.
func (c *checker) notARegister(name string, all []porcupine.Operation) {
	var events []*history.Event
	for _, op := range all[max(0, len(all)-10):] {
		q := op.Input.(access).req
		events = append(events, q.send, q.answer)
	}
	c.violation(Violation{
		"I4", "register", name, fmt.Sprintf("the %d accesses from %v to %v are not linearizable", len(all),
			time.Duration(all[0].Call).Round(time.Millisecond), time.Duration(all[len(all)-1].Call).Round(time.Millisecond)),
		show(events...),
	})
}
