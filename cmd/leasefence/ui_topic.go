package main

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/lease"
)

const (
	mostContenders = 100 // holders, and waiters, are shown
	mostSpells     = 200 // of a name are kept
	tendEvery      = 2 * time.Second
)

// topic is a name that is looked at. It outlives its browsers for a while.
type topic struct {
	hub     *hub
	name    string
	end     context.CancelFunc
	viewers int       // guarded by the hub's lock
	left    time.Time // by the last viewer; guarded likewise

	poked chan struct{} // of capacity 1: a hold has ended

	mu      sync.Mutex // guards the fields below
	news    news
	known   bool // queue is known
	queue   lease.Queue
	health  health
	denied  string // why there is no watch
	leases  map[clientv3.LeaseID]reading
	log     []*spell // at most mostSpells
	open    map[held]*spell
	ended   []*spell // nobody has asked yet what became of their leases
	last    int64    // ID of a spell
	audited int64    // version of the trail
}

// held is a hold: its key and its revision.
type held struct {
	key string
	rev int64
}

// reading is what was left of a lease at a time, and the most that ever was.
type reading struct {
	left, most time.Duration
	at         time.Time
}

// spell is a time of the timeline: a hold, or one of which nothing is known. Times are in milliseconds, 0 if they are not known.
type spell struct {
	ID    int64       `json:"id"`
	Gap   bool        `json:"gap,omitempty"`
	Token string      `json:"token,omitempty"`
	Class lease.Class `json:"class,omitempty"`
	Owner string      `json:"owner,omitempty"`
	Begin int64       `json:"begin,omitempty"` // 0: before the first look
	End   int64       `json:"end,omitempty"`
	How   string      `json:"how,omitempty"` // it has ended
	Lost  bool        `json:"lost,omitempty"`
	Note  string      `json:"note,omitempty"`

	version int64
	rev     int64
	lease   clientv3.LeaseID
}

func newTopic(h *hub, name string) *topic {
	ctx, end := context.WithCancel(h.ctx)
	t := &topic{hub: h, name: name, end: end, poked: make(chan struct{}, 1), leases: make(map[clientv3.LeaseID]reading), open: make(map[held]*spell)}
	t.news.tell()
	h.wg.Go(func() { t.watch(ctx) })
	h.wg.Go(func() { t.tend(ctx) })
	return t
}

// watch follows the queue until ctx ends. What Watch takes for final, such as a permission that is denied, may be changed.
func (t *topic) watch(ctx context.Context) {
	for {
		for q, err := range lease.Watch(ctx, t.hub.client, t.name) {
			if err == nil {
				t.see(q)
				continue
			}
			t.mu.Lock()
			t.denied = err.Error()
			t.news.tell()
			t.mu.Unlock()
		}
		if !pause(ctx, tendEvery) {
			return
		}
	}
}

// see takes in a queue.
func (t *topic) see(q lease.Queue) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	t.news.tell()
	standing := make(map[held]bool, len(q.Holders))
	for _, c := range q.Holders {
		this := held{c.Key, c.Revision}
		standing[this] = true
		s := t.open[this]
		if s == nil {
			s = t.add(&spell{Token: tokenText(c), Class: c.Class, rev: c.Revision, lease: c.Lease})
			if t.known {
				s.Begin = now.UnixMilli()
			}
			t.open[this] = s
		}
		if owner := clip(c.Owner, mostOwner); s.Owner != owner { // a leader may proclaim another
			s.Owner, s.version = owner, t.news.version
		}
	}
	for this, s := range t.open {
		if !standing[this] {
			delete(t.open, this)
			s.End, s.version = now.UnixMilli(), t.news.version
			t.ended = append(t.ended, s)
		}
	}
	if len(t.ended) > mostSpells { // nobody sees the older ones
		t.ended = slices.Clone(t.ended[len(t.ended)-mostSpells:])
	}
	t.queue, t.known, t.denied = q, true, ""
	t.answered()
	select {
	case t.poked <- struct{}{}:
	default:
	}
}

// mostOwner is how much of an owner's text is shown.
const mostOwner = 500

// answered ends a time of which nothing is known.
func (t *topic) answered() {
	for _, s := range t.log {
		if s.Gap && s.End == 0 {
			s.End, s.version = time.Now().UnixMilli(), t.news.version
		}
	}
	t.health.answered()
}

// add adds to the timeline.
func (t *topic) add(s *spell) *spell {
	t.last++
	s.ID, s.version = t.last, t.news.version
	if len(t.log) == mostSpells {
		over := max(0, slices.IndexFunc(t.log, func(s *spell) bool { return s.End != 0 }))
		t.log = slices.Delete(t.log, over, over+1)
	}
	t.log = append(t.log, s)
	return s
}

// tend asks, now and then, what is left of the leases, and after the end of a hold what became of its lease.
func (t *topic) tend(ctx context.Context) {
	for {
		asked := t.ask(ctx)
		next := time.NewTimer(max(tendEvery, time.Duration(asked)*50*time.Millisecond))
		for waits := true; waits; {
			select {
			case <-t.poked:
				t.settle(ctx)
			case <-next.C:
				waits = false
			case <-ctx.Done():
				next.Stop()
				return
			}
		}
	}
}

// ask looks at the queue's leases, or, where they are many, whether etcd answers at all. It returns how many were asked for.
func (t *topic) ask(ctx context.Context) (asked int) {
	ctx, cancel := t.hub.bounded(ctx)
	defer cancel()
	t.mu.Lock()
	many := max(len(t.queue.Holders), len(t.queue.Waiters)) > mostContenders
	t.mu.Unlock()
	var q lease.Queue
	var err error
	if many {
		_, err = t.hub.client.Get(ctx, t.name+"/", clientv3.WithCountOnly()) // by quorum
	} else {
		q, err = lease.Inspect(ctx, t.hub.client, t.name)
	}
	if context.Cause(ctx) == context.Canceled { //nolint:errorlint // it is the very one
		return 0 // nobody looks any more
	}
	version := int64(0)
	if t.hub.trail != nil {
		version = t.hub.trail.refresh()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.news.tell()
	t.audited = version
	if err != nil {
		if t.health.err == "" && t.known {
			t.add(&spell{Gap: true, Begin: t.health.millis()})
		}
		t.health.err = err.Error()
		return 0
	}
	t.answered()
	was := t.leases
	t.leases = make(map[clientv3.LeaseID]reading)
	for _, list := range [...][]lease.Contender{q.Holders, q.Waiters} {
		for _, c := range list {
			if before, known := was[c.Lease]; known && c.TTL <= 0 { // it has gone meanwhile, revoked perhaps
				t.leases[c.Lease] = before
				continue
			}
			t.leases[c.Lease] = reading{c.TTL, max(c.TTL, was[c.Lease].most), time.Now()}
		}
	}
	return len(q.Holders) + len(q.Waiters)
}

// settle tells how holds have ended. That of a lock whose lease lives on was let go, or its key was deleted. Of one whose lease has
// gone with it nobody knows whether it was unlocked first: only that the lease had been left to run out, or had not.
func (t *topic) settle(ctx context.Context) {
	ctx, cancel := t.hub.bounded(ctx) // for all of them: where etcd does not answer, that is soon to be noticed
	defer cancel()
	for {
		t.mu.Lock()
		if len(t.ended) == 0 {
			t.mu.Unlock()
			return
		}
		s := t.ended[0]
		t.ended = t.ended[1:]
		r := t.leases[s.lease]
		t.mu.Unlock()
		resp, err := t.hub.client.TimeToLive(ctx, s.lease)
		how, lost := "over", false
		switch ended := time.UnixMilli(s.End); {
		case err != nil || resp.TTL < 0 && r.at.IsZero():
		case resp.TTL >= 0:
			how = "let go"
		case ended.Before(r.at.Add(r.left)):
			how = "over, with its session"
		case r.left < r.most/2: // nobody had renewed it
			how, lost = "lease expired", true
		}
		t.mu.Lock()
		t.news.tell()
		s.How, s.Lost, s.version = how, lost, t.news.version
		t.mu.Unlock()
	}
}

// note notes something on a hold's spell.
func (t *topic) note(rev int64, text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.news.tell()
	for _, s := range t.log {
		if s.rev == rev {
			s.Note, s.version = text, t.news.version
		}
	}
}

// nameView is a topic for a page.
type nameView struct {
	Name    string          `json:"name"`
	Known   bool            `json:"known"`
	AsOf    int64           `json:"as_of"`
	Error   string          `json:"error,omitempty"`
	Holders []contender     `json:"holders"`
	Waiters []contender     `json:"waiters"`
	Holding int             `json:"holding"` // how many there are
	Waiting int             `json:"waiting"`
	Log     []spell         `json:"log,omitempty"`   // new, or changed
	Trail   json.RawMessage `json:"trail,omitempty"` // a trailView
}

// newsFor adds what is new to a message, and returns what is closed when there is more. A nil topic has none.
func (t *topic) newsFor(sent *cursor, to *message) <-chan struct{} {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if sent.version == t.news.version {
		return t.news.changed
	}
	v := &nameView{
		Name: t.name, Known: t.known, AsOf: t.health.millis(), Error: t.health.err,
		Holders: t.shown(t.queue.Holders), Waiters: t.shown(t.queue.Waiters), Holding: len(t.queue.Holders), Waiting: len(t.queue.Waiters),
	}
	if t.denied != "" {
		v.Error = t.denied
	}
	revs := make(map[int64]bool)
	for _, s := range t.log {
		revs[s.rev] = true
		if s.version > sent.version {
			v.Log = append(v.Log, *s)
		}
	}
	if t.hub.trail != nil {
		v.Trail = sent.fresh(t.hub.trail.of(t.name, revs))
	}
	sent.version = t.news.version
	to.Name = v
	return t.news.changed
}

// shown are contenders as the page shows them.
func (t *topic) shown(all []lease.Contender) []contender {
	all = all[:min(len(all), mostContenders)]
	list := contenders(all, known{owners: true})
	for i, c := range all {
		list[i].Owner = new(clip(c.Owner, mostOwner))
		if r, read := t.leases[c.Lease]; read {
			list[i].TTL = new(int64(r.left / time.Second))
		}
	}
	return list
}
