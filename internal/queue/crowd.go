package queue

import "sync"

// crowds remembers which queues were not empty lately. It is only about speed: an entry that wrongly takes its queue
// for empty needs a second transaction.
type crowds struct {
	mu    sync.Mutex // guards the field below
	names map[string]int
}

const (
	crowdLasts = 8    // so many entries in turn find their queue empty until that is expected of it
	mostCrowds = 1024 // remembered
)

// expected reports whether the queue is likely not to be empty.
func (c *crowds) expected(prefix string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.names[prefix] > 0
}

// met is told whether there was somebody in the queue.
func (c *crowds) met(prefix string, somebody bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := c.names[prefix]
	switch {
	case somebody:
		if len(c.names) >= mostCrowds {
			clear(c.names)
		}
		if c.names == nil {
			c.names = make(map[string]int)
		}
		c.names[prefix] = crowdLasts
	case left > 1:
		c.names[prefix] = left - 1
	default:
		delete(c.names, prefix)
	}
}
