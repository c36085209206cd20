package lease

import (
	"strconv"
	"sync"

	"github.com/leasefence/leasefence/internal/queue"
)

// keys are those of one lease that are in use. A name's first key that is free is taken for it, so that a name which
// is locked over and over has one or two in all: until the next compaction etcd's index keeps every key that ever
// was, and each look at a queue passes all that ever stood in it, at 25 to 30 ns each.
type keys struct {
	mu    sync.Mutex // guards the fields below
	taken map[string]struct{}
	last  string              // of those that were let go
	since map[string]struct{} // those that were let go while what is attached is read, nil otherwise
}

// take chooses a key for name, its suffix beginning with mark, and returns its entry.
func (g *grant) take(name, mark string) queue.Entry {
	k := &g.keys
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.taken == nil {
		k.taken = make(map[string]struct{})
	}
	for n := uint64(0); ; n++ {
		e := queue.NewEntry(g.s.opts.Prefix+name, g.id, mark+g.s.nonce+strconv.FormatUint(n, 36))
		if _, taken := k.taken[e.Key]; !taken {
			k.taken[e.Key] = struct{}{}
			return e
		}
	}
}

// anyKey is a key that is in use or, if none is, was: the session may read it. Ever says whether there was any.
func (g *grant) anyKey() (key string, ever bool) {
	g.keys.mu.Lock()
	defer g.keys.mu.Unlock()
	for key := range g.keys.taken {
		return key, true
	}
	return g.keys.last, g.keys.last != ""
}

// recycle allows an entry's key to be used again. The key must be gone, and each request to enter must have been
// answered: one that may still arrive would bring it back. A late request to leave does no harm, it asks for the
// create revision.
func (g *grant) recycle(e queue.Entry) {
	g.keys.mu.Lock()
	defer g.keys.mu.Unlock()
	delete(g.keys.taken, e.Key)
	g.keys.last = e.Key
	if g.keys.since != nil {
		g.keys.since[e.Key] = struct{}{}
	}
}
