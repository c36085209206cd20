package queue

import (
	"slices"
	"sync"
)

// contention remembers what queues were like lately. It is only about speed: an entry that wrongly takes its queue for
// empty, or for one of contenders alone, needs a second transaction.
type contention struct {
	mu    sync.Mutex           // guards the field below
	names map[string]contended // by Entry.rivals
}

// contended is a queue that is not empty.
type contended struct {
	left  int      // so many entries in turn have to find it empty until that is expected of it
	page  int      // so many of its keys may be read at a time; 0: it is not known
	brisk bool     // in the last wait each end came soon
	mixed bool     // there are keys in it that are no contenders': of nested names, most often
	thick []string // nested names that are not to be read, their keys being too long to be a lock's; with the "/" at the end, in order
}

const (
	contendedLasts = 8    // see contended.left
	mostContended  = 1024 // remembered
)

func (c *contention) of(prefix string) contended {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.names[prefix]
}

// met notes whether there was somebody in the queue.
func (c *contention) met(prefix string, somebody bool) {
	c.change(prefix, func(q *contended) {
		if somebody {
			q.left = contendedLasts
		} else {
			q.left = max(0, q.left-1)
		}
	})
}

// mixed reports whether there are likely other keys in the queue than contenders'. Then the server is not asked to compare
// or to sort all that is below its prefix: etcd does that while nothing else is committed, and reads the values too.
func (c *contention) mixed(prefix string) bool { return c.of(prefix).mixed }

// quicken notes that somebody was waited for in the queue, and whether each end came soon.
func (c *contention) quicken(prefix string, brisk bool) {
	c.change(prefix, func(q *contended) { q.left, q.brisk = contendedLasts, brisk })
}

func (c *contention) mix(prefix string, others bool) {
	c.change(prefix, func(q *contended) { q.mixed = others })
}

// paged remembers what a reading of a queue has found: nested names with long keys and, if it was the whole queue, how many
// keys to read at a time.
func (c *contention) paged(prefix string, page int, thick []string, whole bool) {
	c.change(prefix, func(q *contended) {
		if whole {
			q.page = page
		}
		if room := mostThick - len(q.thick); len(thick) > 0 && room > 0 {
			all := slices.Sorted(slices.Values(append(thick[:min(room, len(thick))], q.thick...)))
			q.thick = slices.Compact(all) // a list that is in use stays as it is
		}
	})
}

func (c *contention) change(prefix string, how func(*contended)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.names[prefix]
	how(&q)
	if q.left == 0 && !q.mixed && q.thick == nil {
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
