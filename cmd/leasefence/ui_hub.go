package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/lease"
)

const (
	mostRows   = 200              // rows of the list that a browser gets
	mostTopics = 64               // names that are watched at a time
	linger     = 10 * time.Minute // how long a name is watched after its last viewer has left
)

// hub reads etcd once for all browsers.
type hub struct {
	ui

	app    *app
	client *clientv3.Client
	trail  *trail // nil without --audit

	ctx context.Context //nolint:containedctx // ends everything that browsers have the hub start

	mu       sync.Mutex // guards the fields below
	topics   map[string]*topic
	viewers  int   // browsers that look at the list
	scanning bool  // scan runs
	listing  news  // tells of a new list
	rows     []row // sorted by name
	health   health
}

// news is a channel that the next change closes.
type news chan struct{}

// tell announces a change.
func (n *news) tell() {
	if *n != nil {
		close(*n)
	}
	*n = make(news)
}

// health says whether etcd answers, and of when the shown state is.
type health struct {
	asOf int64  // when etcd answered last, in milliseconds; 0 if it never has
	err  string // empty: the shown state is the present one
}

func (h *health) answered() { *h = health{asOf: time.Now().UnixMilli()} }

// row is a queue in the list.
type row struct {
	Name    string `json:"name"`
	Token   string `json:"token,omitempty"` // of the first holder
	Holders int    `json:"holders"`
	Waiters int    `json:"waiters"`
}

type listView struct {
	AsOf  int64  `json:"as_of"`
	Error string `json:"error,omitempty"`
	Rows  []row  `json:"rows"`
	Match int    `json:"match"`
	Locks int    `json:"locks"`
}

// newHub makes a hub, which ends with ctx.
func (a *app) newHub(ctx context.Context, client *clientv3.Client, u ui, kept *trail) *hub {
	h := &hub{ui: u, app: a, client: client, trail: kept, ctx: ctx, topics: make(map[string]*topic)}
	h.listing.tell()
	return h
}

// pause sleeps, or returns false when ctx ends.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// scan lists the names repeatedly until nobody looks any more. Then it forgets the list: an old one must not look like the
// present state.
func (h *hub) scan() {
	for looking := true; looking; {
		began := time.Now()
		rows, err := h.read()
		// However long the list is, listing takes less than a tenth of the time, here and in etcd.
		rest := max(h.every, 10*time.Since(began))
		h.mu.Lock()
		was, before := h.health, h.rows
		if err == nil {
			h.rows = rows
			h.health.answered()
		} else {
			h.health.err = err.Error()
			rest = h.every
		}
		if was.asOf == 0 || h.health.err != was.err || !slices.Equal(h.rows, before) {
			h.listing.tell()
		}
		h.mu.Unlock()
		pause(h.ctx, rest)
		h.mu.Lock()
		looking = h.viewers > 0 && h.ctx.Err() == nil
		if !looking {
			h.scanning, h.rows, h.health = false, nil, health{}
		}
		h.mu.Unlock()
	}
}

func (h *hub) read() (rows []row, err error) {
	ctx, cancel := h.app.bounded(h.ctx)
	defer cancel()
	for q, err := range lease.List(ctx, h.client, h.prefix) {
		if err != nil {
			return nil, prefixWanted(err)
		}
		r := row{Name: q.Name, Holders: len(q.Holders), Waiters: len(q.Waiters)}
		if r.Holders > 0 {
			r.Token = tokenText(q.Holders[0])
		}
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b row) int { return strings.Compare(a.Name, b.Name) })
	return rows, nil
}

// viewList keeps the list up to date until the viewer leaves.
func (h *hub) viewList() (leave func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.viewers++
	if !h.scanning {
		h.scanning = true
		go h.scan()
	}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.viewers--
	}
}

// list returns the list and its news. The list is nil if sent is its news, as the page has it then. It is of no time if the
// names are not known yet.
func (h *hub) list(prefix string, contended bool, sent news) (*listView, news) {
	h.mu.Lock()
	rows, health, listing := h.rows, h.health, h.listing
	h.mu.Unlock()
	if listing == sent {
		return nil, listing
	}
	shown := &listView{AsOf: health.asOf, Error: health.err, Rows: []row{}, Locks: len(rows)}
	first, _ := slices.BinarySearchFunc(rows, prefix, func(r row, prefix string) int { return strings.Compare(r.Name, prefix) })
	for _, r := range rows[first:] {
		if !strings.HasPrefix(r.Name, prefix) {
			break
		}
		if contended && r.Waiters == 0 {
			continue
		}
		if shown.Match++; shown.Match <= mostRows {
			shown.Rows = append(shown.Rows, r)
		}
	}
	return shown, listing
}

// look returns the topic of a name, and what the viewer calls to leave it.
func (h *hub) look(name string) (t *topic, leave func(), err error) {
	if err := checkName(name); err != nil {
		return nil, nil, err
	}
	if !strings.HasPrefix(name, h.prefix) {
		return nil, nil, fmt.Errorf("the page shows names that begin with %q", h.prefix)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if t = h.topics[name]; t == nil {
		if len(h.topics) >= mostTopics && !h.forget(0) {
			return nil, nil, fmt.Errorf("%d names are open already", mostTopics)
		}
		t = newTopic(h, name)
		h.topics[name] = t
	}
	t.viewers++
	return t, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		t.viewers--
		t.left = time.Now()
		time.AfterFunc(linger, func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.forget(linger)
		})
	}, nil
}

// forget ends the topic that was left first, if it has had no viewer for the time unseen. It reports whether it ended one.
func (h *hub) forget(unseen time.Duration) bool {
	var oldest *topic
	for _, t := range h.topics {
		if t.viewers == 0 && (oldest == nil || t.left.Before(oldest.left)) {
			oldest = t
		}
	}
	if oldest == nil || time.Since(oldest.left) < unseen {
		return false
	}
	oldest.end()
	delete(h.topics, oldest.name)
	return true
}

// released notes on the timeline of a name, if somebody has looked at it, that this page has released the hold with revision
// rev.
func (h *hub) released(name string, rev int64, note string) {
	h.mu.Lock()
	t := h.topics[name]
	h.mu.Unlock()
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.news.tell()
	for _, s := range t.log {
		if s.rev == rev {
			s.Note = note
		}
	}
}
