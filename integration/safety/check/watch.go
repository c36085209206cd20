package check

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// watch is what the watch of the key space has seen.
type watch struct {
	keys    map[keyAt]*key
	all     []*key // in the order of creation
	highest int64
	lines   map[string]*line // by prefix
}

// key is one life of a key: it may be created again after it was deleted.
type key struct {
	put, del  *history.Event // put: the creation
	off       *history.Event // the write that took it off its lease
	lease     int64          // as of the last change
	first     bool           // it was the first of its queue at some time, a slot's also before all who want a permit; or a reader's with no writer before it
	contender bool
	shared    bool // a reader's
	operated  bool // an operator has deleted it or taken it off its lease
}

// keyAt names a key by its queue, where no two have the same create revision.
type keyAt struct {
	queue   string
	created int64
}

// queueOf is a key's queue: everything up to the last slash.
func queueOf(key string) string { return key[:strings.LastIndexByte(key, '/')+1] }

// keyOf is the key of a handle, nil if the watch has not seen it.
func (c *checker) keyOf(a *acquisition) *key {
	return c.watch.keys[keyAt{a.name() + "/", revision(a.token())}]
}

// line is the queue of one name. Keys join at its end, since create revisions grow.
type line struct {
	keys  []*key  // from the first that may still contend
	gate  *line   // of a slot: the queue of its semaphore
	slots []*line // of a semaphore
	left  int64   // the revision at which one left that was first
}

// slotDir stands between the name of a semaphore and the number of a slot.
const slotDir = "/~slot/"

// line is the queue with that prefix.
func (w *watch) line(queue string) *line {
	l := w.lines[queue]
	if l == nil {
		l = &line{}
		w.lines[queue] = l
		if n := strings.LastIndex(queue, slotDir); n >= 0 {
			l.gate = w.line(queue[:n+1])
			l.gate.slots = append(l.gate.slots, l)
		}
	}
	return l
}

// lets reports whether a slot's key came in its turn: in place of one that was first, or else nobody who is older waits.
func (l *line) lets(k *key) bool {
	n := slices.IndexFunc(l.keys, func(k *key) bool { return !k.over() })
	return l.left == k.put.Created || n < 0 || l.keys[n].put.Created > k.put.Created
}

// serve notes whose turn it is: that of the first or, if this is a reader, of all readers before the next writer.
func (l *line) serve() {
	for _, slot := range l.slots {
		slot.serve()
	}
	for len(l.keys) > 0 && l.keys[0].over() {
		l.keys = l.keys[1:]
	}
	for n, k := range l.keys {
		switch {
		case k.over():
		case k.shared:
			k.first = true
		default:
			k.first = k.first || n == 0 && (l.gate == nil || l.gate.lets(k))
			return
		}
	}
}

// over reports whether the key does not contend, or does no more.
func (k *key) over() bool { return k.del != nil || !k.contender }

// revision is the part of a token that is etcd's.
func revision(t fence.Token) int64 { return int64(t) & (1<<48 - 1) }

// readWatch builds every queue again, revision by revision.
func (c *checker) readWatch() {
	w := &c.watch
	w.keys, w.lines = map[keyAt]*key{}, map[string]*line{}
	slices.SortStableFunc(c.changes, func(x, y *history.Event) int { return cmp.Compare(x.Revision, y.Revision) })
	now := map[string]*key{}
	for n := 0; n < len(c.changes); {
		touched := map[*line]bool{}
		rev := c.changes[n].Revision
		for ; n < len(c.changes) && c.changes[n].Revision == rev; n++ {
			if l := c.change(c.changes[n], now); l != nil {
				touched[l] = true
			}
		}
		// A transaction may do several things to a queue: only what it leaves counts.
		for l := range touched {
			l.serve()
		}
		w.highest = rev
	}
	c.count("changes seen by the watch", len(c.changes))
}

// change brings one event into its queue, which it returns.
func (c *checker) change(e *history.Event, now map[string]*key) *line {
	w := &c.watch
	k := now[e.Key]
	queue := queueOf(e.Key)
	l := w.line(queue)
	switch {
	case e.Kind == history.Delete && k == nil:
		c.malformed(fmt.Sprintf("revision %d deletes key %q, of which the watch knows nothing", e.Revision, e.Key))
		return nil
	case e.Kind == history.Delete:
		k.del = e
		delete(now, e.Key)
		if k.first {
			l.left = e.Revision
		}
	case e.Created == e.Revision && k == nil:
		k = &key{put: e}
		now[e.Key], w.keys[keyAt{queue, e.Created}] = k, k
		w.all = append(w.all, k)
		k.set(e, queue)
		l.keys = append(l.keys, k)
	case k == nil || k.put.Created != e.Created:
		c.malformed(fmt.Sprintf("revision %d changes key %q, created at %d, of which the watch knows nothing", e.Revision, e.Key, e.Created))
		return nil
	default:
		k.set(e, queue)
	}
	return l
}

// readers is the class of readers, with which their keys begin.
const readers = "r"

// set notes a value of the key. A contender's key begins with its lease, or with its class and that.
func (k *key) set(e *history.Event, queue string) {
	k.lease = e.Lease
	was := k.contender
	child, shared := strings.CutPrefix(e.Key[len(queue):], readers)
	k.contender, k.shared = e.Lease != 0 && strings.HasPrefix(child, strconv.FormatInt(e.Lease, 16)), shared
	if was && !k.contender && k.off == nil {
		k.off = e
	}
}

// ended is the event with which the key stopped to contend, nil if it never did.
func (k *key) ended() *history.Event {
	if k.off != nil {
		return k.off
	}
	return k.del
}

// watchedTokens checks I2 against the watch.
func (c *checker) watchedTokens() {
	w := &c.watch
	compared, unseen := 0, 0
	owners := map[string][]owned{}
	for _, a := range c.ops {
		if a.grant == nil || len(w.all) == 0 {
			continue
		}
		rev := revision(a.token())
		k := c.keyOf(a)
		if k == nil && !c.whole && rev > w.highest {
			unseen++
			continue
		}
		compared++
		bad := func(format string, args ...any) {
			v := Violation{Invariant: "I2", Checker: "watch", Name: a.name(), Text: fmt.Sprintf(format, args...), Events: show(a.grant)}
			if k != nil {
				v.Events = show(k.put, k.del, a.grant)
			}
			c.violation(v)
		}
		switch {
		case k == nil:
			bad("token %d is not the create revision of a key of %q", a.token(), a.name())
		case a.grant.Key != "" && a.grant.Key != k.put.Key: // a caller may not be told its key
			bad("token %d is that of key %q, and %q was granted", a.token(), k.put.Key, a.grant.Key)
		case k.shared != a.shared():
			bad("token %d is that of key %q, which is of another kind than its holder", a.token(), k.put.Key)
		case !k.first && !k.operated: // a waiter whose key an operator takes may get a handle that ends when the watch tells
			bad("token %d was granted, and somebody whom it has to wait for was always before its key", a.token())
		default:
			owners[a.name()] = append(owners[a.name()], owned{rev, a})
		}
	}
	for name, all := range owners {
		c.ownerOrder(name, all)
	}
	c.count("tokens compared with the watch", compared)
	c.count("tokens the watch has not come to", unseen)
}

// owned is a tenure, by the create revision of its key.
type owned struct {
	created int64
	*acquisition
}

// ownerOrder checks that tokens increase from owner to owner.
func (c *checker) ownerOrder(name string, all []owned) {
	slices.SortStableFunc(all, func(x, y owned) int { return cmp.Compare(x.created, y.created) })
	for n := 1; n < len(all); n++ {
		x, y := all[n-1], all[n]
		switch {
		case x.created == y.created:
			c.violation(Violation{
				"I2", "watch", name, fmt.Sprintf("one key was granted twice, with tokens %d and %d", x.token(), y.token()), show(x.grant, y.grant),
			})
		case x.token() >= y.token():
			c.violation(Violation{
				"I2", "watch", name, fmt.Sprintf("token %d came after %d in the queue", y.token(), x.token()), show(x.grant, y.grant),
			})
		}
	}
}

// leftovers checks the end of I7: no key is left that hangs on a lease or lies below a name.
func (c *checker) leftovers() {
	queues := map[string]bool{}
	for _, a := range c.ops {
		queues[a.name()+"/"] = true
	}
	left := 0
	for _, k := range c.watch.all {
		if k.del != nil || k.lease == 0 && !queues[queueOf(k.put.Key)] {
			continue
		}
		left++
		if c.whole {
			c.violation(Violation{"I7", "watch", "", fmt.Sprintf("key %q is left at the end", k.put.Key), show(k.put)})
		}
	}
	c.count("keys created", len(c.watch.all))
	c.count("keys left at the end", left)
}
