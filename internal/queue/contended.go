package queue

import "sync"

// contention remembers what queues were like recently. It only saves requests: an entry that wrongly takes its queue
// to be empty, or to have contenders alone, needs a second transaction.
type contention struct {
	mu    sync.Mutex           // guards the field below
	names map[string]contended // by Entry.rivals
}

// contended is a queue that was recently not empty, or that has keys which are no contenders.
type contended struct {
	left  int  // so many entries in a row must still find the queue empty before it counts as empty
	brisk bool // in the last wait each end came within shortWait
	mixed bool // it has keys that are no contenders, most often of nested names
}

const (
	contendedLasts = 8    // the first value of contended.left: expecting an empty queue wrongly costs a second request
	mostContended  = 1024 // the most queues that are remembered
)

func (c *contention) of(prefix string) contended {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.names[prefix]
}

// met records whether an entry has found somebody in the queue.
func (c *contention) met(prefix string, somebody bool) {
	c.change(prefix, func(q *contended) {
		if somebody {
			q.left = contendedLasts
		} else {
			q.left = max(0, q.left-1)
		}
	})
}

// mixed reports whether the queue is expected to have keys that are no contenders. Then etcd must not compare or sort
// all keys below its prefix: it commits nothing else meanwhile, and reads the values too.
func (c *contention) mixed(prefix string) bool { return c.of(prefix).mixed }

// quicken records that an entry has waited in the queue, and whether each end came within shortWait.
func (c *contention) quicken(prefix string, brisk bool) {
	c.change(prefix, func(q *contended) { q.left, q.brisk = contendedLasts, brisk })
}

func (c *contention) mix(prefix string, others bool) {
	c.change(prefix, func(q *contended) { q.mixed = others })
}

func (c *contention) change(prefix string, how func(*contended)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.names[prefix]
	how(&q)
	if q.left == 0 && !q.mixed {
		delete(c.names, prefix)
		return
	}
	if _, known := c.names[prefix]; !known && len(c.names) >= mostContended {
		clear(c.names)
	}
	if c.names == nil {
		c.names = make(map[string]contended)
	}
	c.names[prefix] = q
}
