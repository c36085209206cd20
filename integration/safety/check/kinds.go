package check

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// acquisitionsOf are what an enter event asks for: one lock or, of a set, each of its names; of a node of a tree, that and all
// above it, which it shares. They have the same events, and each is looked at as a lock of its own name.
func acquisitionsOf(e *history.Event) []*acquisition {
	all := []*acquisition{{enter: e, excused: forever}}
	add := func(name string, shares bool) {
		other := *e
		other.Name = name
		all = append(all, &acquisition{enter: &other, excused: forever, shares: shares})
	}
	for _, name := range e.With {
		add(name, false)
	}
	for node, below := e.Name, e.Verb.OfTree(); below; {
		var last int
		if last = strings.LastIndex(node, "/~"); last < 0 {
			break
		}
		node = node[:last]
		add(node, true)
	}
	for _, a := range all {
		a.parts = all
	}
	return all
}

// grantOf is the grant event of one of them: the first is told its name and key.
func (a *acquisition) grantOf(e *history.Event) *history.Event {
	if a == a.parts[0] {
		return e
	}
	other := *e
	other.Name, other.Key = a.enter.Name, ""
	return &other
}

// alone reports whether a stands in etcd's queues by itself, and in several perhaps: what it has waited for in one of them
// another one may tell.
func (a *acquisition) alone() bool {
	return a.enter.Verb.Many() || a.enter.Verb == history.Mutex
}

// operated reports whether an operator has taken a key of a, or another one of its set: which ends all of it.
func (c *checker) operated(a *acquisition) bool {
	return slices.ContainsFunc(a.parts, func(a *acquisition) bool {
		k := c.keyOf(a)
		return k != nil && k.operated
	})
}

// permits is how many there are of the semaphore that a has entered.
func (c *checker) permits(a *acquisition) int {
	n, err := strconv.Atoi(a.enter.Value)
	if err != nil || n < 1 {
		c.malformed(fmt.Sprintf("op %d wants one of %q permits, want a number", a.enter.Op, a.enter.Value))
	}
	return n
}

// counts checks I3 for semaphores: no more permits are held at one time than there are, and none beside etcd's own mutex that was
// held when that came. One who waited before the mutex gets a slot whose key is newer, for which it does not wait. As in
// [checker.intervals], whoever has a lower token and is live after a grant was there when that was made.
func (c *checker) counts() {
	looked := 0
	semaphores := map[string][]*acquisition{}
	for _, a := range c.ops {
		if a.grant != nil && a.enter.Verb.OfPermit() {
			semaphores[a.enter.Name] = append(semaphores[a.enter.Name], a)
			looked++
		}
	}
	for name, permits := range semaphores {
		all := slices.Clone(permits)
		for _, a := range c.ops {
			if a.grant != nil && a.enter.Verb == history.Mutex && a.name() == name {
				all = append(all, a)
			}
		}
		for _, a := range all {
			v := Violation{Invariant: "I3", Checker: "counts", Name: name, Events: show(a.grant)}
			held := 0
			for _, x := range permits {
				if to, live := x.live(); live && x.token() < a.token() && to > a.grant.At {
					held++
					v.Events = append(v.Events, show(x.grant, x.lastLive)...)
				}
			}
			if held == 0 || !a.owned() || a.enter.Verb.OfPermit() && held < c.permits(a) {
				continue
			}
			v.Text = fmt.Sprintf("token %d was granted while %d held a permit", a.token(), held)
			c.violation(v)
		}
	}
	c.count("permits compared with others of their semaphore", looked)
}
