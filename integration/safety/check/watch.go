package check

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

type watch struct {
	keys    map[keyAt]*key
	all     []*key // in the order of creation
	highest int64
	lines   map[string]*line // by prefix
}

// key is a key from its creation to its deletion. If it is created again, that is another key.
type key struct {
	put, del  *history.Event // put: the creation
	off       *history.Event // the write that took it off its lease
	lease     int64          // as of the last change
	first     bool           // it was its turn at some time, see serve
	contender bool           // it stands in the queue
	shared    bool           // a reader's
	asked     time.Duration  // when its holder asked for it; 0: it has none
	by        *disturbance   // by which an operator deleted it or took it off its lease; nil: none did
}

// keyAt identifies a key: no two keys of a queue have the same create revision.
type keyAt struct {
	queue   string
	created int64
}

// queueOf returns the queue of a key: everything up to the last slash.
func queueOf(key string) string { return key[:strings.LastIndexByte(key, '/')+1] }

// line is the queue of one name. New keys go to its end, since create revisions grow.
type line struct {
	keys  []*key  // without the oldest, if they are over
	gate  *line   // of a slot: the queue of its semaphore
	slots []*line // of a semaphore
	left  int64   // the last revision at which a key was deleted whose turn it was
}

// slotDir stands between the name of a semaphore and the number of a slot.
const slotDir = "/~slot/"

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

// lets reports whether a slot's key came in its turn: it was created as the first waiter left, or is older than all
// waiters. l is the queue of the semaphore.
func (l *line) lets(k *key) bool {
	n := slices.IndexFunc(l.keys, func(k *key) bool { return !k.over() })
	return l.left == k.put.Created || n < 0 || l.keys[n].put.Created > k.put.Created
}

// serve notes whose turn it is: that of the first key or, if it is a reader's, of all readers ahead of the next writer.
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

// over reports whether the key never contended, or no longer does.
func (k *key) over() bool { return k.del != nil || !k.contender }

// revision returns the revision of etcd in a token, without the era.
func revision(t fence.Token) int64 { return int64(t) & (1<<48 - 1) }

// readWatch rebuilds every queue, revision by revision, and finds the keys of the handles.
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
		// A transaction may change several keys of a queue. Only the result counts.
		for l := range touched {
			l.serve()
		}
		w.highest = rev
	}
	for _, a := range c.ops {
		if a.grant == nil {
			continue
		}
		if a.key = w.keys[keyAt{a.name() + "/", revision(a.token())}]; a.key != nil {
			a.key.asked = a.enter.At
		}
	}
	c.n["changes seen by the watch"], c.n["keys created"] = len(c.changes), len(w.all)
}

// change applies one event to its queue and returns the queue, or nil if the event contradicts earlier ones.
func (c *checker) change(e *history.Event, now map[string]*key) *line {
	w := &c.watch
	k := now[e.Key]
	queue := queueOf(e.Key)
	l := w.line(queue)
	switch {
	case e.Kind == history.Delete && k == nil:
		c.malformed("revision %d deletes key %q, which the watch has not seen", e.Revision, e.Key)
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
		c.malformed("revision %d changes key %q, created at %d, which the watch has not seen", e.Revision, e.Key, e.Created)
		return nil
	default:
		k.set(e, queue)
	}
	return l
}

// readers is the class of readers: their keys begin with it.
const readers = "r"

// set applies a put to the key. The key of a contender begins with the ID of its lease, that of a reader with the class
// and then the ID.
func (k *key) set(e *history.Event, queue string) {
	k.lease = e.Lease
	was := k.contender
	child, shared := strings.CutPrefix(e.Key[len(queue):], readers)
	k.contender, k.shared = e.Lease != 0 && strings.HasPrefix(child, strconv.FormatInt(e.Lease, 16)), shared
	if was && !k.contender && k.off == nil {
		k.off = e
	}
}

// ended returns the event with which the key ceased to contend, nil if there is none.
func (k *key) ended() *history.Event {
	if k.off != nil {
		return k.off
	}
	return k.del
}

// watched checks I2 against the watch.
func (c *checker) watched(a *acquisition) {
	if a.grant == nil || len(c.watch.all) == 0 {
		return
	}
	k := a.key
	if k == nil && !c.whole && revision(a.token()) > c.watch.highest {
		c.n["tokens beyond the end of the watch"]++
		return
	}
	c.n["tokens compared with the watch"]++
	if k == nil {
		c.bad("I2", a.name(), show(a.grant), "token %d is not the create revision of any key of %q", a.token(), a.name())
		return
	}
	bad := func(format string, args ...any) { c.bad("I2", a.name(), show(k.put, k.del, a.grant), format, args...) }
	switch {
	case a.grant.Key != "" && a.grant.Key != k.put.Key: // not every caller learns its key
		bad("token %d belongs to key %q, but %q was granted", a.token(), k.put.Key, a.grant.Key)
	case k.shared != a.shared():
		bad("token %d belongs to key %q, which is of another kind than its holder", a.token(), k.put.Key)
	case !k.first && k.by == nil: // if an operator takes a waiter's key, the waiter may get a handle that ends soon
		bad("token %d was granted, but there was always a key ahead that it had to wait for", a.token())
	}
}

// leftovers checks the end of I7: no key is left that is on a lease or in the queue of a name.
func (c *checker) leftovers() {
	queues := map[string]bool{}
	for _, a := range c.ops {
		queues[a.name()+"/"] = true
	}
	for _, k := range c.watch.all {
		if k.del != nil || k.lease == 0 && !queues[queueOf(k.put.Key)] {
			continue
		}
		c.n["keys left at the end"]++
		if c.whole {
			c.bad("I7", "", show(k.put), "key %q is left at the end", k.put.Key)
		}
	}
}

const (
	promptly  = time.Second            // within which a handle ends after an operator took its key
	unwatched = 250 * time.Millisecond // how long a handle's key is not watched: see the doc of package lease
)

// excuse finds the keys that operators took, and the handles that lost their keys this way.
func (c *checker) excuse() {
	// The last revision at which keys of each lease were deleted. A revocation that took keys is the last.
	last := map[int64]int64{}
	for _, k := range c.watch.all {
		if k.del != nil {
			last[k.lease] = max(last[k.lease], k.del.Revision)
		}
	}
	for _, k := range c.watch.all {
		if k.ended() == nil {
			continue
		}
		if k.ended().Revision == last[k.lease] {
			k.by = c.takenBy(strconv.FormatInt(k.lease, 16), k)
		}
		if k.by == nil {
			k.by = c.takenBy(k.put.Key, k)
		}
		if k.by != nil {
			c.n["keys taken by operators"]++
		}
	}
	for _, a := range c.ops {
		if k := a.key; k != nil && k.by != nil {
			a.excused, a.gone = k.by.begin.At, k.ended()
			k.by.hit = k.by.end != nil && k.by.end.Revision != 0
		}
	}
}

// takenBy finds the operator's fault with that target, the key or its lease, that ended the key; nil if none did.
func (c *checker) takenBy(target string, k *key) *disturbance {
	for _, f := range c.faults {
		if f.begin.Target != target || !f.operator() {
			continue
		}
		if f.end != nil && f.end.Revision != 0 {
			if f.end.Revision == k.ended().Revision {
				return f
			}
			continue
		}
		// A request that has failed may be carried out a moment later. When the key was put is not known well enough: the
		// watch lags while its member is stopped.
		if f.begin.At <= k.ended().At && k.asked <= f.until()+promptly {
			return f
		}
	}
	return nil
}

// deleted checks I6: only operators delete a key or take it off its lease while its handle is live.
func (c *checker) deleted(a *acquisition) {
	k := a.key
	if k == nil || k.ended() == nil {
		return
	}
	c.n["deletions compared with handles"]++
	bad := func(what string, later *history.Event) {
		c.bad("I6", a.name(), show(k.put, a.grant, k.ended(), later), "key %q was %s, but not by an operator", k.put.Key, what)
	}
	switch {
	case k.by != nil:
	case k.off != nil:
		bad("taken off its lease", nil)
	case a.lastLive != nil && a.lastLive.At > k.del.At:
		bad("deleted while its handle was live", a.lastLive)
	case a.lost != nil && strings.Contains(a.lost.Error, lease.ReasonKeyDeleted.String()) && !a.operated():
		bad("deleted under its handle", a.lost)
	}
}

// deletedWaiting checks I6: an acquisition does not fail because its key was taken, unless an operator took it.
func (c *checker) deletedWaiting(a *acquisition) {
	if a != a.parts[0] || a.grant != nil || a.giveUp == nil {
		return
	}
	if r := reasonIn(a.giveUp.Error); r != lease.ReasonKeyDeleted && r != lease.ReasonKeyOverwritten {
		return
	}
	for _, f := range c.faults {
		if f.operator() && !f.hit && f.begin.At <= a.giveUp.At && f.until() >= a.enter.At-promptly && hit(f.begin.Target, a) {
			return
		}
	}
	c.bad("I6", a.name(), show(a.enter, a.giveUp), "the key of a waiter was taken, but not by an operator")
}

// hit reports whether an operator's target is what a lost: the lease that its error names, or a key on that lease in
// one of its queues.
func hit(target string, a *acquisition) bool {
	for _, part := range a.parts {
		if strings.HasPrefix(target, part.name()+"/") {
			key := strings.TrimPrefix(target[len(queueOf(target)):], readers)
			target, _, _ = strings.Cut(key, "-")
			break
		}
	}
	return strings.Contains(a.giveUp.Error, "(lease "+target+")")
}

// prompt checks I3: a handle ends soon after an operator has taken its key.
func (c *checker) prompt(a *acquisition) {
	if a.gone == nil {
		return
	}
	c.n["handles that lost their key to an operator"]++
	if a.lastLive == nil {
		return
	}
	if limit := c.limit(max(a.gone.At, a.grant.At+unwatched)+promptly, a.enter.Client()); a.lastLive.At > limit {
		c.bad("I3", a.name(), show(a.grant, a.gone, a.lastLive),
			"an operator has taken key %q, and its handle was live %v after that, want at most %v",
			a.gone.Key, a.lastLive.At-a.gone.At, limit-a.gone.At)
	}
}

// limit returns t or, if faults that are not aimed at another client are on then or were on shortly before, one second
// and a TTL after the last of them has healed.
func (c *checker) limit(t time.Duration, client string) time.Duration {
	for _, f := range c.faults { // in the order of their beginning
		elsewhere := f.begin.Target != client && c.clients[f.begin.Target]
		if !elsewhere && !f.operator() && f.begin.At <= t {
			t = max(t, min(f.until(), c.last)+c.ttl+promptly)
		}
	}
	return t
}
