package check

import (
	"cmp"
	"slices"
	"time"
)

// spans are disjoint intervals, in order.
type spans []span

type span struct{ from, to time.Duration }

// touch reports whether one of the intervals meets the one between from and to.
func (s spans) touch(from, to time.Duration) bool {
	n, _ := slices.BinarySearchFunc(s, from, func(one span, t time.Duration) int { return cmp.Compare(one.to, t) })
	return n < len(s) && s[n].from <= to
}

// reaches reports whether a fault may affect the client: every fault does that is not aimed at another client.
func (b *book) reaches(f *disturbance, client string) bool {
	return f.begin.Target == client || !b.clients[f.begin.Target]
}
