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

// spare returns the longest time between from and to that is in none of the intervals.
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

// reaches reports whether a fault may affect the client: every fault does that is not aimed at another client.
func (b *book) reaches(f *disturbance, client string) bool {
	return f.begin.Target == client || !b.clients[f.begin.Target]
}

// hindrances returns, for each client, the times at which its waiters may lose their places or be unable to take any:
// while faults that reach it are on and, except after an operator's, for a TTL after that.
func (c *checker) hindrances() map[string]spans {
	all := map[string]spans{}
	for client := range c.clients {
		var s spans
		for _, f := range c.faults {
			if !c.reaches(f, client) {
				continue
			}
			to := f.until()
			if to != forever && !f.operator() { // if an operator takes a key, its owner gets an error at once
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
