package check

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// acquisitionsOf returns what an enter event asks for: one lock, or each name of a set, or a node of a tree and, as a
// reader, all nodes above. They have the same events, and each is checked like a lock of its name.
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

// grantOf returns the grant event for one part of an acquisition. The name and the key in e are those of the first
// part.
func (a *acquisition) grantOf(e *history.Event) *history.Event {
	if a == a.parts[0] {
		return e
	}
	other := *e
	other.Name, other.Key = a.enter.Name, ""
	return &other
}

// alone reports whether a has its own place in etcd's queues, and maybe in several: then it may be first in one queue
// while it waits in another.
func (a *acquisition) alone() bool {
	return a.enter.Verb.Many() || a.enter.Verb == history.Mutex
}

// operated reports whether an operator took a key of a or another key of its set, which ends the whole set.
func (c *checker) operated(a *acquisition) bool {
	return slices.ContainsFunc(a.parts, func(a *acquisition) bool {
		k := c.keyOf(a)
		return k != nil && k.operated
	})
}

// permits returns the number of permits of the semaphore that a entered.
func (c *checker) permits(a *acquisition) int {
	n, err := strconv.Atoi(a.enter.Value)
	if err != nil || n < 1 {
		c.malformed(fmt.Sprintf("op %d wants one of %q permits, want a positive number", a.enter.Op, a.enter.Value))
	}
	return n
}

// counts checks I3 for semaphores: there are never more holders than permits, and no permit with a lower token is still
// held when etcd's own mutex is granted. The mutex does not wait for permits with higher tokens, which waiters that
// came before it may get. As in [checker.intervals], a handle with a lower token that is live after a grant held its
// permit at that grant.
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
			v.Text = fmt.Sprintf("token %d was granted while %d other handles held a permit", a.token(), held)
			c.violation(v)
		}
	}
	c.count("permits compared with others of their semaphore", looked)
}
