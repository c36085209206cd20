package check

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

const forever = time.Duration(1<<63 - 1)

// book is a history sorted into acquisitions, requests, resources and faults.
type book struct {
	first     time.Duration // the time of the first event
	last      time.Duration // of the last one
	whole     bool          // the run came to its end
	ops       []*acquisition
	peers     []*acquisition            // of etcd's own mutex, as a control
	granted   map[string][]*acquisition // by name, in the order of their tokens
	requests  []*request
	resources map[string]*resource
	changes   []*history.Event // of the watch
	observed  []*history.Event
	renewed   []*history.Event
	faults    []*disturbance
	elections map[string]bool
	clients   map[string]bool          // that have asked for something
	restored  time.Duration            // when a restore began; forever: there was none
	back      time.Duration            // when it had ended; forever: it has not
	healed    time.Duration            // when all faults were; forever: never
	peace     time.Duration            // when it began; forever: there was none
	era       time.Duration            // from when on everything is of the next era
	ttls      map[string]time.Duration // the longest of each client, if it is not that of all
	stalls    spans                    // in which the process of most clients did not run
	ends      map[int64]time.Duration  // the deadlines of leases
	watch     watch
}

type acquisition struct {
	enter, grant, giveUp, lastLive, lastAsked, explained, lost, release, released *history.Event

	died    time.Duration  // when its process was killed, if it has no other end; 0: it was not
	key     *key           // nil: nothing was granted, or the watch has not seen the key
	excused time.Duration  // from when an operator's fault excuses an overlap; forever: never
	gone    *history.Event // the operator's deletion or overwrite of its key

	parts  []*acquisition // all of the same Op, including itself
	shares bool           // it holds, as a reader, a node above the one that was asked for
}

type request struct {
	send, answer *history.Event
	applied      []*history.Event // including refusals
}

// resource has what one resource recorded, in order.
type resource struct {
	name    string
	applied []*history.Event
	control bool // it does not look at tokens
}

type disturbance struct {
	begin, end *history.Event

	hit bool // it took the key of a handle, so it did not take that of a waiter
}

func (d *disturbance) until() time.Duration {
	switch {
	case d.end != nil:
		return d.end.At
	case d.operator() || d.begin.Name == history.ClientKilled:
		return d.begin.At // they leave nothing to heal
	}
	return forever
}

func (d *disturbance) operator() bool {
	names := []string{history.OperatorDeletes, history.OperatorOverwrites, history.OperatorRevokes}
	return slices.Contains(names, d.begin.Name)
}

// name returns the name that a holds or asks for. For a permit it is that of the slot, once the slot is known.
func (a *acquisition) name() string {
	if a.grant != nil && a.enter.Verb == history.Permit {
		return a.grant.Name
	}
	return a.enter.Name
}

func (a *acquisition) shared() bool       { return a.shares || a.enter.Verb == history.RLock }
func (a *acquisition) token() fence.Token { return a.grant.Token }

// ended returns when the caller learned that the acquisition was over: from then on it neither holds nor waits.
func (a *acquisition) ended() time.Duration {
	if over := first(a.giveUp, a.released, a.lost); over < forever || a.died == 0 {
		return over
	}
	return a.died
}

// first returns the time of the first of some events, of which each may be nil.
func first(events ...*history.Event) time.Duration {
	at := forever
	for _, e := range events {
		if e != nil {
			at = min(at, e.At)
		}
	}
	return at
}

// live returns the last moment at which the handle is known to be live and not excused.
func (a *acquisition) live() (last time.Duration, ok bool) {
	if a.grant == nil || a.lastLive == nil {
		return 0, false
	}
	last = min(a.lastLive.At, a.excused)
	return last, a.grant.At < last
}

func (c *checker) newBook(events []history.Event) *book {
	b := &book{
		first: forever, restored: forever, back: forever, healed: forever, peace: forever, era: forever, ttls: map[string]time.Duration{},
		granted: map[string][]*acquisition{}, resources: map[string]*resource{}, elections: map[string]bool{}, clients: map[string]bool{},
	}
	ops, requests, faults := map[int64][]*acquisition{}, map[int64]*request{}, map[int64]*disturbance{}
	for n := range events {
		e := &events[n]
		b.first, b.last = min(b.first, e.At), max(b.last, e.At)
		switch e.Kind {
		case history.Enter:
			if ops[e.Op] != nil {
				c.malformed("op %d enters twice", e.Op)
				continue
			}
			ops[e.Op] = acquisitionsOf(e)
			if strings.HasSuffix(e.Name, history.PeerMark) {
				b.peers = append(b.peers, ops[e.Op]...)
				continue
			}
			b.ops = append(b.ops, ops[e.Op]...)
			b.clients[e.Client()] = true
			if e.Verb == history.Campaign {
				b.elections[e.Name] = true
			}
		case history.Grant, history.GiveUp, history.Live, history.Explained, history.Lost, history.Release, history.Released:
			if ops[e.Op] == nil {
				c.malformed("%s of op %d, which did not enter", e.Kind, e.Op)
			}
			for _, a := range ops[e.Op] {
				c.acquisitionEvent(a, e)
			}
		case history.Send:
			if requests[e.Request] != nil && requests[e.Request].send != nil {
				c.malformed("request %d is sent twice", e.Request)
				continue
			}
			b.request(requests, e).send = e
		case history.Answer:
			b.request(requests, e).answer = e
		case history.Apply:
			res := b.resource(e.Name)
			res.applied = append(res.applied, e)
			if !res.control {
				r := b.request(requests, e)
				r.applied = append(r.applied, e)
			}
		case history.Put, history.Delete:
			b.changes = append(b.changes, e)
		case history.Observe:
			b.observed = append(b.observed, e)
			b.elections[e.Name] = true
		case history.Renewed:
			b.renewed = append(b.renewed, e)
		case history.Fault:
			faults[e.Fault] = &disturbance{begin: e}
			b.faults = append(b.faults, faults[e.Fault])
			if e.Name == history.Restored {
				b.restored = e.At
			}
		case history.Heal:
			if faults[e.Fault] == nil {
				c.malformed("fault %d heals but did not begin", e.Fault)
				continue
			}
			faults[e.Fault].end = e
			if e.Name == history.Restored {
				b.back = e.At
			}
		case history.Note:
			c.note(b, e)
		default:
			c.malformed("event of unknown kind %q", e.Kind)
		}
	}
	for _, f := range b.faults {
		if b.whole && f.until() == forever { // it would excuse everything after it
			c.malformed("fault %d has not healed at the end", f.begin.Fault)
		}
	}
	b.sort()
	b.bury()
	c.countBook(b)
	c.n["events"] = len(events)
	return b
}

func (c *checker) note(b *book, e *history.Event) {
	switch e.Name {
	case history.NoteEnd:
		b.whole = true
	case history.NoteHealed:
		b.healed = e.At
	case history.NotePeace:
		b.peace = e.At
	case history.NoteEra:
		b.era = e.At
	}
	if e.Name != history.NoteStall && e.Name != history.NoteTTL {
		return
	}
	d, err := time.ParseDuration(e.Value)
	switch {
	case err != nil || d <= 0:
		c.malformed("note %q is %q, want a positive duration", e.Name, e.Value)
	case e.Name == history.NoteTTL:
		c.ttl = max(c.ttl, d)
		b.ttls[e.Client()] = d
	default:
		b.stalls = append(b.stalls, span{e.At - d, e.At}) // in order, since one process records them
	}
}

func (c *checker) acquisitionEvent(a *acquisition, e *history.Event) {
	if e.Kind == history.Live {
		if a.lastLive == nil || e.At > a.lastLive.At {
			a.lastLive = e
		}
		if e.Verb != history.ByContext && (a.lastAsked == nil || e.At > a.lastAsked.At) {
			a.lastAsked = e
		}
		return
	}
	field := map[history.Kind]**history.Event{
		history.Grant: &a.grant, history.GiveUp: &a.giveUp, history.Explained: &a.explained,
		history.Lost: &a.lost, history.Release: &a.release, history.Released: &a.released,
	}[e.Kind]
	if *field != nil {
		c.malformed("op %d has two events %q", e.Op, e.Kind)
		return
	}
	if *field = e; e.Kind == history.Grant {
		*field = a.grantOf(e)
	}
}

func (b *book) request(all map[int64]*request, e *history.Event) *request {
	r := all[e.Request]
	if r == nil {
		r = &request{}
		all[e.Request] = r
		b.requests = append(b.requests, r)
	}
	return r
}

func (b *book) resource(name string) *resource {
	r := b.resources[name]
	if r == nil {
		r = &resource{name: name, control: strings.HasSuffix(name, history.UnfencedMark)}
		b.resources[name] = r
	}
	return r
}

// sort sorts everything by time, except what resources applied and what was granted.
func (b *book) sort() {
	slices.SortStableFunc(b.ops, func(x, y *acquisition) int { return cmp.Compare(x.enter.At, y.enter.At) })
	slices.SortStableFunc(b.observed, func(x, y *history.Event) int { return cmp.Compare(x.At, y.At) })
	slices.SortStableFunc(b.faults, func(x, y *disturbance) int { return cmp.Compare(x.begin.At, y.begin.At) })
	for _, a := range slices.Concat(b.ops, b.peers) {
		if a.grant != nil {
			b.granted[a.name()] = append(b.granted[a.name()], a)
		}
	}
	for _, all := range b.granted {
		slices.SortStableFunc(all, func(x, y *acquisition) int { return cmp.Compare(x.token(), y.token()) })
	}
}

// bury notes which acquisitions were under way when their process was killed.
func (b *book) bury() {
	for _, f := range b.faults { // in order: the first kill counts
		if f.begin.Name != history.ClientKilled {
			continue
		}
		for _, a := range b.ops {
			if a.enter.At <= f.until() && a.ended() == forever && a.enter.Client() == f.begin.Target {
				a.died = max(f.begin.At, 1)
			}
		}
	}
}

// reasons are the reasons of losses, except that of a restore.
var reasons = []lease.Reason{
	lease.ReasonDeadlinePassed, lease.ReasonLeaseGone, lease.ReasonKeyDeleted, lease.ReasonKeyOverwritten, lease.ReasonSessionClosed,
}

// reasonIn returns the reason of a loss that an error's text has, 0 if it has none.
func reasonIn(text string) lease.Reason {
	for _, r := range reasons {
		if strings.Contains(text, r.String()) {
			return r
		}
	}
	return 0
}

func (c *checker) countBook(b *book) {
	for _, a := range b.ops {
		if a != a.parts[0] {
			continue
		}
		if a.grant != nil {
			c.n[Granted]++
			c.n[GrantedAs+string(cmp.Or(a.enter.Verb, "lock"))]++
		}
		if a.giveUp != nil {
			c.n["not granted: "+string(a.giveUp.Outcome)]++
		}
		if a.died > 0 {
			c.n["ended by a kill"]++
		}
		if a.lost != nil && (a.release == nil || a.lost.At < a.release.At) {
			c.n["lost: "+reasonIn(a.lost.Error).String()]++
		}
	}
	for _, f := range b.faults {
		c.n["begun: "+f.begin.Name]++
	}
}

// acquisitionsOf returns what an enter event asks for: one lock, or each name of a set, or a node of a tree and, as a
// reader, all nodes above. They have the same events, and each is checked like a lock of its name.
func acquisitionsOf(e *history.Event) []*acquisition {
	all := []*acquisition{{enter: e, excused: forever}}
	add := func(name string, shares bool) {
		other := *e
		other.Name = name
		all = append(all, &acquisition{enter: &other, excused: forever, shares: shares})
	}
	for _, name := range e.With {
		add(name, false)
	}
	if nodes := strings.Split(e.Name, "/~"); e.Verb == history.TreeLock {
		for n := range nodes[1:] {
			add(strings.Join(nodes[:n+1], "/~"), true)
		}
	}
	for _, a := range all {
		a.parts = all
	}
	return all
}

// grantOf returns the grant event for one part of an acquisition. The name and the key in e are those of the first
// part.
func (a *acquisition) grantOf(e *history.Event) *history.Event {
	if a == a.parts[0] {
		return e
	}
	other := *e
	other.Name, other.Key = a.enter.Name, ""
	return &other
}

// alone reports whether a has its own place in etcd's queues, and maybe in several: then it may be first in one queue
// while it waits in another.
func (a *acquisition) alone() bool {
	return a.enter.Verb.Many() || a.enter.Verb == history.Mutex
}

// operated reports whether an operator took a key of a or another key of its set, which ends the whole set.
func (a *acquisition) operated() bool {
	return slices.ContainsFunc(a.parts, func(a *acquisition) bool {
		return a.key != nil && a.key.by != nil
	})
}
