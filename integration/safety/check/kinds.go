package check

import (
	"cmp"
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

// semaphores are those who have held permits, by the names of semaphores and in the order of their grants.
func (b *book) semaphores() map[string][]*acquisition {
	all := map[string][]*acquisition{}
	for _, a := range b.ops {
		if a.grant != nil && a.enter.Verb.OfPermit() {
			all[a.enter.Name] = append(all[a.enter.Name], a)
		}
	}
	return byGrant(all)
}

func byGrant(all map[string][]*acquisition) map[string][]*acquisition {
	for _, name := range all {
		slices.SortStableFunc(name, func(x, y *acquisition) int { return cmp.Compare(x.grant.At, y.grant.At) })
	}
	return all
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
// held when that came. One who waited before the mutex gets a slot whose key is newer, for which it does not wait.
func (c *checker) counts() {
	looked := 0
	all := c.semaphores()
	for _, a := range c.ops {
		if name := a.name(); a.grant != nil && a.enter.Verb == history.Mutex && all[name] != nil {
			all[name] = append(all[name], a)
		}
	}
	for name, holders := range byGrant(all) {
		var in []*acquisition
		for _, a := range holders {
			if _, _, live := a.live(); !live {
				continue
			}
			looked++
			in = slices.DeleteFunc(in, func(x *acquisition) bool {
				_, to, _ := x.live()
				return to <= a.grant.At
			})
			in = append(in, a)
			held, most, beside := 0, 0, false
			for _, x := range in {
				if x.enter.Verb.OfPermit() {
					held, most = held+1, c.permits(x)
					beside = beside || slices.ContainsFunc(in, func(m *acquisition) bool {
						return m.enter.Verb == history.Mutex && x.token() < m.token()
					})
				}
			}
			if !beside && held <= most {
				continue
			}
			v := Violation{Invariant: "I3", Checker: "counts", Name: name, Text: fmt.Sprintf("%d held it at the same time", len(in))}
			for _, x := range in {
				v.Events = append(v.Events, show(x.grant, x.lastLive)...)
			}
			c.violation(v)
		}
	}
	c.count("permits compared with others of their semaphore", looked)
}
