package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/lease"
)

const (
	mostRows   = 200     // of a list, at a time
	mostListed = 200_000 // names are kept
	mostTopics = 64      // names are watched at a time
	linger     = 10 * time.Minute
)

// hub reads etcd for all browsers.
type hub struct {
	client  *clientv3.Client
	prefix  string
	every   time.Duration
	longest time.Duration // of what is not meant to wait
	trail   *trail        // nil: none is given

	ctx    context.Context //nolint:containedctx // the life of what browsers have it start
	wg     sync.WaitGroup
	wanted chan struct{} // of capacity 1: somebody looks at the list

	mu      sync.Mutex // guards the fields below
	topics  map[string]*topic
	viewers int // of the list
	listing news
	current bool      // somebody has looked since rows were read, or until then
	until   time.Time // the next reading is due, if somebody looks
	rows    []row     // by their names
	capped  bool
	health  health
}

// news tells readers that something has changed.
type news struct {
	version int64
	changed chan struct{} // closed then
}

func (n *news) tell() {
	n.version++
	if n.changed != nil {
		close(n.changed)
	}
	n.changed = make(chan struct{})
}

// health is since when what is shown is no more than what was.
type health struct {
	asOf time.Time // of the last answer
	err  string    // empty: it is as things are
}

func (h *health) answered() { *h = health{asOf: time.Now()} }

// millis is when the last answer came, 0 if there was none.
func (h *health) millis() int64 {
	if h.asOf.IsZero() {
		return 0
	}
	return h.asOf.UnixMilli()
}

// row is a queue in the list.
type row struct {
	Name    string      `json:"name"`
	Class   lease.Class `json:"class,omitempty"` // of the first holder, as the token
	Token   string      `json:"token,omitempty"`
	Holders int         `json:"holders"`
	Waiters int         `json:"waiters"`
}

type listView struct {
	AsOf  int64           `json:"as_of"`
	Error string          `json:"error,omitempty"`
	Shown json.RawMessage `json:"shown,omitempty"` // a shownRows
}

type shownRows struct {
	Rows   []row `json:"rows"`
	Match  int   `json:"match"`
	Locks  int   `json:"locks"`
	Capped bool  `json:"capped,omitempty"`
}

func newHub(client *clientv3.Client, u ui, longest time.Duration, kept *trail) *hub {
	h := &hub{client: client, prefix: u.prefix, every: u.every, longest: longest, trail: kept, wanted: make(chan struct{}, 1), topics: make(map[string]*topic)}
	h.listing.tell()
	return h
}

func (h *hub) start(ctx context.Context) {
	h.ctx = ctx
	h.wg.Go(h.scan)
}

// wait returns when nothing runs any more.
func (h *hub) wait() { h.wg.Wait() }

func (h *hub) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return within(ctx, h.longest, h.client.Endpoints())
}

// pause sleeps, or returns false when ctx ends.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// scan lists the names again and again while somebody looks.
func (h *hub) scan() {
	for {
		select {
		case <-h.wanted:
		case <-h.ctx.Done():
			return
		}
		began := time.Now()
		rows, capped, err := h.read()
		// Lists of any length take a tenth of one processor at most, here and there.
		rest := max(h.every, 10*time.Since(began))
		h.mu.Lock()
		if err == nil {
			h.rows, h.capped = rows, capped
			h.health.answered()
		} else {
			h.health.err = err.Error()
			rest = h.every
		}
		h.listing.tell()
		more := h.viewers > 0
		h.current, h.until = true, time.Now().Add(rest)
		h.mu.Unlock()
		if !pause(h.ctx, rest) {
			return
		}
		if more {
			h.want()
		}
	}
}

func (h *hub) want() {
	select {
	case h.wanted <- struct{}{}:
	default:
	}
}

func (h *hub) read() (rows []row, capped bool, err error) {
	ctx, cancel := h.bounded(h.ctx)
	defer cancel()
	for q, err := range lease.List(ctx, h.client, h.prefix) {
		if err != nil {
			return nil, false, prefixWanted(err)
		}
		if len(rows) == mostListed {
			capped = true
			break
		}
		r := row{Name: q.Name, Holders: len(q.Holders), Waiters: len(q.Waiters)}
		if r.Holders > 0 {
			r.Class, r.Token = q.Holders[0].Class, tokenText(q.Holders[0])
		}
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b row) int { return strings.Compare(a.Name, b.Name) })
	return rows, capped, nil
}

// viewList has the list kept up to date until the viewer leaves.
func (h *hub) viewList() (leave func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.current = h.current && (h.viewers > 0 || time.Now().Before(h.until))
	h.viewers++
	h.want()
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.viewers--
	}
}

// list adds the list to a message if it has changed, and returns what is closed when it changes next.
func (h *hub) list(prefix string, contended bool, sent *cursor, to *message) <-chan struct{} {
	h.mu.Lock()
	rows, capped, health, changed, version, current := h.rows, h.capped, h.health, h.listing.changed, h.listing.version, h.current
	h.mu.Unlock()
	if version == sent.version || !current { // what was read an hour ago is not how things are
		return changed
	}
	sent.version = version
	view := listView{AsOf: health.millis(), Error: health.err}
	shown := shownRows{Rows: []row{}, Locks: len(rows), Capped: capped}
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
	view.Shown = sent.fresh(shown)
	to.List = &view
	return changed
}

// look is the topic of a name, until the viewer leaves.
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
			return nil, nil, fmt.Errorf("%d names are looked at already", mostTopics)
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

// forget ends topics that nobody has looked at for so long; for 0 the one that has been left for longest.
func (h *hub) forget(unseen time.Duration) (forgotten bool) {
	var oldest *topic
	for name, t := range h.topics {
		switch {
		case t.viewers > 0:
		case unseen == 0 && (oldest == nil || t.left.Before(oldest.left)):
			oldest = t
		case unseen > 0 && time.Since(t.left) >= unseen:
			t.end()
			delete(h.topics, name)
		}
	}
	if oldest != nil {
		oldest.end()
		delete(h.topics, oldest.name)
	}
	return oldest != nil
}

// released notes on the timeline what this page has done.
func (h *hub) released(name string, rev int64, note string) {
	h.mu.Lock()
	t := h.topics[name]
	h.mu.Unlock()
	if t != nil {
		t.note(rev, note)
	}
}
