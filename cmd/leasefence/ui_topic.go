package main

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/lease"
)

const (
	mostContenders = 100             // holders that are shown, and waiters
	mostSpells     = 200             // spells that are kept of a name
	tendEvery      = 2 * time.Second // pause between two looks at the leases
)

// topic is a name that browsers look at, or have looked at a while ago.
type topic struct {
	hub     *hub
	name    string
	end     context.CancelFunc
	viewers int       // guarded by the hub's mutex
	left    time.Time // when the last viewer left; guarded by the hub's mutex

	began chan struct{} // of capacity 1; filled when the watch has shown the queue for the first time

	mu     sync.Mutex // guards the fields below
	news   news
	seen   int64       // number of states that the watch has shown
	queue  lease.Queue // the last of them
	health health
	denied string // why the watch has ended; empty while it runs
	behind bool   // etcd has another queue, and the watch has not shown it yet
	leases map[clientv3.LeaseID]reading
	log    []*spell // at most mostSpells
	open   map[held]*spell
	last   int64 // ID of the newest spell
}

// held identifies a hold.
type held struct {
	key string
	rev int64
}

// reading is the remaining time of a lease at some time, and the longest remaining time that was read.
type reading struct {
	left, most time.Duration
	at         time.Time // before the request: the answer may take as long as the lease lives
}

// spell is an entry of the timeline: a hold, or a gap, a time when etcd did not answer. Times are in milliseconds.
type spell struct {
	ID    int64  `json:"id"`
	Gap   bool   `json:"gap,omitempty"`
	Token string `json:"token,omitempty"`
	Owner string `json:"owner,omitempty"`
	Begin int64  `json:"begin,omitempty"` // 0: before the first look
	End   int64  `json:"end,omitempty"`   // 0: it lasts
	How   string `json:"how,omitempty"`   // how the hold has ended
	Lost  bool   `json:"lost,omitempty"`  // the lease has expired
	Note  string `json:"note,omitempty"`  // what this page has done to the hold

	rev   int64
	lease clientv3.LeaseID
	last  reading // of the lease while the hold lasted
}

func newTopic(h *hub, name string) *topic {
	ctx, end := context.WithCancel(h.ctx)
	t := &topic{hub: h, name: name, end: end, began: make(chan struct{}, 1), leases: make(map[clientv3.LeaseID]reading), open: make(map[held]*spell)}
	t.news.tell()
	go t.watch(ctx)
	go t.tend(ctx)
	return t
}

// watch follows the queue until ctx ends. It begins again after an error that ends lease.Watch, such as a denied
// permission: an operator may grant it.
func (t *topic) watch(ctx context.Context) {
	for {
		for q, err := range lease.Watch(ctx, t.hub.client, t.name) {
			if err == nil {
				t.see(ctx, q)
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

// see takes over a new state of the queue.
func (t *topic) see(ctx context.Context, q lease.Queue) {
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
			s = t.add(&spell{Token: tokenText(c), rev: c.Revision, lease: c.Lease, last: t.leases[c.Lease]})
			if t.seen > 0 {
				s.Begin = now.UnixMilli()
			}
			t.open[this] = s
		}
		s.Owner = clip(c.Owner, mostOwner) // a leader may proclaim a new value
	}
	for this, s := range t.open {
		if !standing[this] {
			delete(t.open, this)
			s.End = now.UnixMilli()
			if slices.Contains(t.log, s) {
				go t.settle(ctx, s)
			}
		}
	}
	if t.seen == 0 {
		t.began <- struct{}{}
	}
	t.queue, t.denied, t.behind = q, "", false
	t.seen++
	t.answered()
}

// mostOwner is the number of characters of an owner's text that are shown.
const mostOwner = 500

// answered notes that queue is the present one, and ends the gap, if there is one. The caller holds mu.
func (t *topic) answered() {
	for _, s := range t.log {
		if s.Gap && s.End == 0 {
			s.End = time.Now().UnixMilli()
		}
	}
	t.health.answered()
}

// add adds s to the timeline. If that is full, the oldest spell that has ended goes; if all last, the oldest.
func (t *topic) add(s *spell) *spell {
	t.last++
	s.ID = t.last
	if len(t.log) == mostSpells {
		over := max(0, slices.IndexFunc(t.log, func(s *spell) bool { return s.End != 0 }))
		t.log = slices.Delete(t.log, over, over+1)
	}
	t.log = append(t.log, s)
	return s
}

// tend reads the remaining time of the leases from time to time.
func (t *topic) tend(ctx context.Context) {
	for {
		asked := t.ask(ctx)
		select {
		case <-t.began: // ask for the leases
		case <-time.After(max(tendEvery, time.Duration(asked)*50*time.Millisecond)):
		case <-ctx.Done():
			return
		}
	}
}

// ask reads the queue, since the watch may be silent, and the remaining time of its leases. If there are many, it only
// checks that those who are shown are still there; until the watch has shown how many, that etcd answers. It returns the
// number of leases that it has asked for.
func (t *topic) ask(ctx context.Context) (asked int) {
	ctx, cancel := t.hub.app.bounded(ctx)
	defer cancel()
	t.mu.Lock()
	shown, seen := t.queue, t.seen
	t.mu.Unlock()
	began := time.Now()
	var q lease.Queue
	var present bool // shown was the present queue
	var err error
	switch {
	case seen == 0:
		_, err = t.hub.client.Get(ctx, t.name+"/", clientv3.WithCountOnly())
	case max(len(shown.Holders), len(shown.Waiters)) > mostContenders:
		present, err = t.stands(ctx, shown)
	default:
		q, err = lease.Inspect(ctx, t.hub.client, t.name)
		present = slices.EqualFunc(q.Holders, shown.Holders, sameHold) && slices.EqualFunc(q.Waiters, shown.Waiters, sameHold)
	}
	if context.Cause(ctx) == context.Canceled { //nolint:errorlint // never wrapped
		return 0 // the topic has been forgotten
	}
	err = caused(ctx, t.hub.client, err)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.news.tell()
	t.behind = err == nil && !present && seen > 0 && seen == t.seen // news of the watch that came meanwhile may be newer
	if err != nil {
		if t.health.err == "" && t.seen > 0 {
			t.add(&spell{Gap: true, Begin: t.health.asOf})
		}
		t.health.err = err.Error()
		return 0
	}
	if !t.behind {
		t.answered()
	}
	was := t.leases
	t.leases = make(map[clientv3.LeaseID]reading)
	for _, list := range [...][]lease.Contender{q.Holders, q.Waiters} {
		for _, c := range list {
			if c.TTL > 0 { // else it is gone since the keys were read
				t.leases[c.Lease] = reading{c.TTL, max(c.TTL, was[c.Lease].most), began}
			}
		}
	}
	for _, s := range t.open { // the watch may show later than this look that a hold has ended
		s.last = cmp.Or(t.leases[s.lease], s.last)
	}
	return len(q.Holders) + len(q.Waiters)
}

func sameHold(a, b lease.Contender) bool { return a.Key == b.Key && a.Revision == b.Revision }

// stands reports whether the contenders of q that the page shows are still there.
func (t *topic) stands(ctx context.Context, q lease.Queue) (all bool, err error) {
	all = true
	shown := slices.Concat(q.Holders[:min(len(q.Holders), mostContenders)], q.Waiters[:min(len(q.Waiters), mostContenders)])
	_, err = etcd.InParts(shown, etcd.PartSize, 1, func(part []lease.Contender) error {
		var there []clientv3.Cmp
		for _, c := range part {
			there = append(there, clientv3.Compare(clientv3.CreateRevision(c.Key), "=", c.Revision))
		}
		read := clientv3.OpGet(t.name+"/", clientv3.WithCountOnly()) // makes the comparison linearizable
		resp, err := t.hub.client.Txn(ctx).If(there...).Then(read).Commit()
		if err == nil {
			all = all && resp.Succeeded
		}
		return err
	})
	return all, err
}

// settle finds out how a hold has ended. If the lease lives on, the holder has released the lock, or somebody has
// deleted the key. If the lease is gone, etcd does not tell whether the holder had released the lock before; the last
// reading only tells whether the lease can have expired.
func (t *topic) settle(ctx context.Context, s *spell) {
	ctx, cancel := t.hub.app.bounded(ctx)
	defer cancel()
	resp, err := t.hub.client.TimeToLive(ctx, s.lease)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.news.tell()
	s.How = "ended"
	switch ended, last := time.UnixMilli(s.End), s.last; {
	case err != nil || resp.TTL < 0 && last.at.IsZero():
	case resp.TTL >= 0:
		s.How = "released"
	case ended.Before(last.at.Add(last.left)): // before the lease could expire
		s.How = "ended with its session"
	case last.left < last.most/2: // nobody had renewed it
		s.How, s.Lost = "lease expired", true
	}
}

// nameView is a topic as the page gets it.
type nameView struct {
	Name    string      `json:"name"`
	Known   bool        `json:"known"`
	AsOf    int64       `json:"as_of"`
	Error   string      `json:"error,omitempty"`
	Holders []contender `json:"holders"`
	Waiters []contender `json:"waiters"`
	Holding int         `json:"holding"` // number of all holders
	Waiting int         `json:"waiting"` // number of all waiters
	Log     []spell     `json:"log"`
	Trail   *trailView  `json:"trail,omitempty"`
}

// view returns the topic as the page gets it, and its news. A nil topic has neither.
func (t *topic) view() (*nameView, news) {
	if t == nil {
		return nil, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	v := &nameView{
		Name: t.name, Known: t.seen > 0, AsOf: t.health.asOf, Error: t.health.err,
		Holders: t.shown(t.queue.Holders), Waiters: t.shown(t.queue.Waiters), Holding: len(t.queue.Holders), Waiting: len(t.queue.Waiters),
		Log: make([]spell, 0, len(t.log)),
	}
	switch {
	case t.denied != "":
		v.Error = t.denied
	case t.behind:
		v.Error = "the queue has changed since, but the watch has not shown how yet"
	}
	revs := make(map[int64]bool)
	for _, s := range t.log {
		revs[s.rev] = true
		v.Log = append(v.Log, *s)
	}
	if t.hub.trail != nil {
		v.Trail = t.hub.trail.of(t.name, revs)
	}
	return v, t.news
}

// shown returns the contenders that the page shows. The caller holds mu.
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
