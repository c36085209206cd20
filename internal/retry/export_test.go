package retry

import "time"

// Bounds are the bounds of a request's first n attempts.
func Bounds(first time.Duration, endpoints, n int) []time.Duration {
	b := bounds{first: first, endpoints: endpoints}
	var all []time.Duration
	for range n {
		all = append(all, b.next())
	}
	return all
}
