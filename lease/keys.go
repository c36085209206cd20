package lease

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/leasefence/leasefence/internal/queue"
)

// keys are the keys of one lease that are in use. They are numbered within their name, and numbers are reused, so that a
// name which is locked over and over has one to three keys in all: until the next compaction etcd's index keeps every
// key that ever existed, and each read of a queue passes all of its keys there, at 25 to 30 ns each.
//
// The number of a key that may still appear, or come back, is burned: neither it nor a lower one is used again, for any
// name.
type keys struct {
	mu    sync.Mutex        // guards the fields below
	taken map[string]uint64 // the keys in use, and their numbers
	names map[string]uint64 // by the queue's prefix, how many of its keys are in use
	base  uint64            // above every burned number
	last  string            // the key released last
	since map[string]bool   // the keys released while reclaim reads what is attached; nil otherwise
}

// take chooses a key for name whose suffix begins with mark, and returns its entry: a reader's if shared is set.
func (g *grant) take(name, mark string, shared bool) queue.Entry {
	k := &g.keys
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.taken == nil {
		k.taken, k.names = make(map[string]uint64), make(map[string]uint64)
	}
	name = g.s.opts.Prefix + name
	newEntry := queue.NewEntry
	if shared {
		newEntry = queue.NewReader
	}
	// Of twice as many numbers as keys in use, every second one is free. With none in use it is always the same number.
	for i := k.base + rand.Uint64N(2*k.names[name+"/"]+1); ; i++ {
		e := newEntry(name, g.id, mark+g.s.nonce+strconv.FormatUint(i, 36))
		if _, taken := k.taken[e.Key]; taken {
			continue
		}
		e.After = g.s.revisions.Highest()
		k.names[e.Prefix]++
		k.taken[e.Key] = i
		return e
	}
}

// anyKey returns a key that is in use or, if none is, one that was: the session may read it. Ever reports whether there
// was any.
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

// recycle lets an entry's key be used again. The key must be gone, and each request to enter must have been answered:
// one that arrives later would bring the key back. A late request to leave does no harm to another key of that name,
// because it compares the create revision.
func (g *grant) recycle(e queue.Entry) { g.keys.release(e, false) }

// burn takes an entry's key out of use, permanently.
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
	if k.names[e.Prefix]--; k.names[e.Prefix] == 0 {
		delete(k.names, e.Prefix)
	}
	if burn {
		k.base = max(k.base, i+1)
	}
}

// record starts or ends the record of released keys: a key on it may have been read as attached before its release.
func (k *keys) record(begin bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.since = nil
	if begin {
		k.since = make(map[string]bool)
	}
}

// takeBack burns a key that was read as attached to the lease, if it is a key of this session that was not in use
// during the read: it has come back, or arrived late. It reports whether it did.
func (g *grant) takeBack(key string) (queue.Entry, bool) {
	prefix := queue.Below([]byte(key))
	child := strings.TrimLeft(key[len(prefix):], "ghijklmnopqrstuvwxyz") // without its class
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
	return queue.Entry{Prefix: prefix, Key: key, Lease: g.id}, true
}
