package lease

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/leasefence/leasefence/internal/queue"
)

// keys are those of one lease that are in use. They are numbered within their name, and a number that is free is used again,
// so that a name which is locked over and over has one or two keys in all: until the next compaction etcd's index keeps
// every key that ever was, and each look at a queue passes all that ever stood in it, at 25 to 30 ns each.
//
// The number of a key that may still appear, or may come back, is burned: it is never used again. Names where no key is in use
// are not remembered; they begin above all numbers that were burned for any name.
type keys struct {
	mu    sync.Mutex        // guards the fields below
	taken map[string]uint64 // the keys in use, and their numbers
	names map[string]number // by the queue's prefix, where a key is in use
	base  uint64            // below it is every number that was burned
	last  string            // of the released keys
	since map[string]bool   // those that were released while what is attached is read, nil otherwise
}

// number is the state of the numbers of one name.
type number struct {
	next uint64 // neither it nor any after it was used since the name was in use
	free []uint64
	used int
}

// take chooses a key for name, its suffix beginning with mark, and returns its entry, a reader's if shared is set.
func (g *grant) take(name, mark string, shared bool) queue.Entry {
	k := &g.keys
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.taken == nil {
		k.taken, k.names = make(map[string]uint64), make(map[string]number)
	}
	name = g.s.opts.Prefix + name
	n, known := k.names[name+"/"]
	if !known {
		n.next = k.base
	}
	i := n.next
	if last := len(n.free) - 1; last >= 0 {
		i, n.free = n.free[last], n.free[:last]
	} else {
		n.next++
	}
	n.used++
	suffix := mark + g.s.nonce + strconv.FormatUint(i, 36)
	e := queue.NewEntry(name, g.id, suffix)
	if shared {
		e = queue.NewReader(name, g.id, suffix)
	}
	e.After = g.s.revisions.Highest()
	k.names[e.Prefix] = n
	k.taken[e.Key] = i
	return e
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

func (k *keys) inUse() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Keys(k.taken))
}

// recycle allows an entry's key to be used again. The key must be gone, and each request to enter must have been
// answered: one that may still arrive would bring it back. A late request to leave does no harm, it asks for the
// create revision.
func (g *grant) recycle(e queue.Entry) { g.keys.release(e, false) }

// burn takes an entry's key out of use, for ever.
func (g *grant) burn(e queue.Entry) { g.keys.release(e, true) }

func (k *keys) release(e queue.Entry, burn bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	i, taken := k.taken[e.Key]
	if !taken {
		return
	}
	delete(k.taken, e.Key)
	k.last = e.Key
	if k.since != nil {
		k.since[e.Key] = true
	}
	n := k.names[e.Prefix]
	n.used--
	if burn {
		k.base = max(k.base, i+1)
	}
	switch {
	case n.used == 0:
		delete(k.names, e.Prefix)
		return
	case !burn && i >= k.base: // a number may stand for several keys, a reader's and a writer's, and one of the others be burned
		n.free = append(n.free, i)
	}
	k.names[e.Prefix] = n
}

// record begins, or ends, to remember which keys are released: where one is, its being attached may have been read before.
func (k *keys) record(begin bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.since = nil
	if begin {
		k.since = make(map[string]bool)
	}
}

// takeBack burns a key that was attached to the lease, if it is one of the session's and nobody has used it while it was
// read: it has come back, or come late.
func (g *grant) takeBack(key string) (queue.Entry, bool) {
	prefix := queue.Below([]byte(key))
	child := strings.TrimLeft(key[len(prefix):], "ghijklmnopqrstuvwxyz") // less its class
	suffix, ours := strings.CutPrefix(child, strconv.FormatInt(int64(g.id), 16)+"-")
	text, made := strings.CutPrefix(suffix[strings.LastIndexByte(suffix, '-')+1:], g.s.nonce)
	i, err := strconv.ParseUint(text, 36, 64)
	k := &g.keys
	k.mu.Lock()
	defer k.mu.Unlock()
	_, taken := k.taken[key]
	if !ours || !made || err != nil || taken || k.since[key] {
		return queue.Entry{}, false
	}
	k.base = max(k.base, i+1)
	if n, known := k.names[prefix]; known {
		n.next = max(n.next, i+1)
		n.free = slices.DeleteFunc(n.free, func(free uint64) bool { return free == i })
		k.names[prefix] = n
	}
	return queue.Entry{Prefix: prefix, Key: key, Lease: g.id}, true
}
