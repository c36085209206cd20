package check

import (
	"cmp"
	"slices"
	"time"
)

// spans are intervals, in order, that do not meet.
type spans []span

type span struct{ from, to time.Duration }

// touch reports whether one of them has a moment between from and to.
func (s spans) touch(from, to time.Duration) bool {
	n, _ := slices.BinarySearchFunc(s, from, func(one span, t time.Duration) int { return cmp.Compare(one.to, t) })
	return n < len(s) && s[n].from <= to
}

// spare is the longest time between from and to that none of them touches.
func (s spans) spare(from, to time.Duration) (longest time.Duration) {
	for _, one := range s {
		if one.to <= from {
			continue
		}
		if one.from >= to {
			break
		}
		longest, from = max(longest, one.from-from), one.to
	}
	return max(longest, to-from)
}

// reaches reports whether a fault may be one of that client: it is unless it is aimed at another.
func (b *book) reaches(f *disturbance, client string) bool {
	return f.begin.Target == client || !b.clients[f.begin.Target]
}

// hindrances are the times at which waiters of each client may lose their places or take none: of faults, and of a TTL
// after each but an operator's. A fault of another client is none.
func (c *checker) hindrances() map[string]spans {
	all := map[string]spans{}
	for client := range c.clients {
		var s spans
		for _, f := range c.faults {
			if !c.reaches(f, client) {
				continue
			}
			to := f.until()
			if to != forever && !f.operator() { // the owner of a key that an operator takes gets an error
				to += c.ttl
			}
			if n := len(s); n > 0 && f.begin.At <= s[n-1].to {
				s[n-1].to = max(s[n-1].to, to)
			} else {
				s = append(s, span{f.begin.At, to})
			}
		}
		all[client] = s
	}
	return all
}
