package check

import (
	"slices"
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
	if nodes := strings.Split(e.Name, "/~"); e.Verb == history.TreeLock {
		for n := range nodes[1:] {
			add(strings.Join(nodes[:n+1], "/~"), true)
		}
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
func (a *acquisition) operated() bool {
	return slices.ContainsFunc(a.parts, func(a *acquisition) bool {
		return a.key != nil && a.key.by != nil
	})
}
