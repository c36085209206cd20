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
	n, _ := slices.BinarySearchFunc(s, from, func(one span, t time.Duration) int { return cmp.Compare(one.to, t) })
	for _, one := range s[n:] {
		if one.from >= to {
			break
		}
		longest, from = max(longest, one.from-from), one.to
	}
	return max(longest, to-from)
}

func union(all ...spans) (merged spans) {
	sorted := slices.Concat(all...)
	slices.SortFunc(sorted, func(x, y span) int { return cmp.Compare(x.from, y.from) })
	for _, one := range sorted {
		if n := len(merged); n > 0 && one.from <= merged[n-1].to {
			merged[n-1].to = max(merged[n-1].to, one.to)
		} else {
			merged = append(merged, one)
		}
	}
	return merged
}
