package election

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// hub watches one queue for all observers of its name. While somebody leads, it watches the leader's key only, so that
// it receives nothing of waiting candidates and of nested names. While nobody leads, it watches all keys of the queue.
type hub struct {
	at    target
	out   *etcd.Lookout
	look  etcd.Look // its Seen is the latest rev of this history; 0: nothing was read yet
	end   context.CancelFunc
	ended chan struct{}

	// The fields below belong to run's goroutine.
	leader  Leader
	rev     int64              // leader is the leader as of this revision; 0: not known
	highest int64              // the highest token of this history
	shown   bool               // leader is the latest in log
	unwatch context.CancelFunc // ends the latest watch; nil: there is none

	observers int // guarded by hubs.mu

	mu      sync.Mutex // guards the fields below
	history int        // counts how often revisions have moved back
	log     backlog
	err     error         // why the hub has ended
	changed chan struct{} // closed and replaced when log or err change
}

// hubs are the hubs of this process.
var hubs = struct {
	mu sync.Mutex // guards the field below, and hub.observers
	of map[target]*hub
}{of: make(map[target]*hub)}

// target is what a hub watches.
type target struct {
	client *clientv3.Client
	prefix string
}

// join returns the hub of a prefix for one more observer, which must call leave. A hub that is new has not read
// anything yet.
func join(client *clientv3.Client, prefix string) (h *hub, isNew bool) {
	hubs.mu.Lock()
	defer hubs.mu.Unlock()
	at := target{client, prefix}
	h = hubs.of[at]
	if isNew = h == nil; isNew {
		h = &hub{at: at, look: etcd.Look{Prefix: prefix}, ended: make(chan struct{}), changed: make(chan struct{})}
		hubs.of[at] = h
		h.out = etcd.Of(client).LookOut(&h.look)
		var ctx context.Context
		ctx, h.end = context.WithCancel(context.Background()) // the hub outlives its first observer
		go h.run(ctx)
	}
	h.observers++
	return h, isNew
}

// leave ends an observer's use of a hub. The last observer stops the hub and waits for its end.
func leave(h *hub) {
	hubs.mu.Lock()
	h.observers--
	last := h.observers == 0
	if last {
		h.forget()
	}
	hubs.mu.Unlock()
	if last {
		h.out.Leave(&h.look)
		h.end()
		<-h.ended
	}
}

// forget removes h, so that the next observer gets a new hub. The caller holds hubs.mu.
func (h *hub) forget() {
	if hubs.of[h.at] == h {
		delete(hubs.of, h.at)
	}
}

// run follows the leaders until ctx ends or something final happens.
func (h *hub) run(ctx context.Context) {
	defer close(h.ended)
	defer h.watchNoMore()
	var b etcd.Backoff
	for goesOn := false; ctx.Err() == nil; {
		began := time.Now()
		var err error
		goesOn, err = h.follow(ctx, goesOn)
		if err != nil && ctx.Err() == nil {
			h.fail(err)
			return
		}
		if goesOn {
			continue // another leader
		}
		if time.Since(began) > time.Second {
			b.Reset()
		}
		if b.Sleep(ctx) != nil {
			return
		}
	}
}

func (h *hub) watchNoMore() {
	if h.unwatch != nil {
		h.unwatch()
		h.unwatch = nil
	}
}

// follow is the life of one watch. It reports true if it ends because the leader has changed, which another watch is to
// follow, and false if the watch broke (a compaction, a member without a leader, a suspect stream). A watch that broke
// is no error: the read that goes with the next watch returns what is final. GoesOn is what the previous call has
// reported.
func (h *hub) follow(ctx context.Context, goesOn bool) (bool, error) {
	if h.rev == 0 {
		if err := h.read(ctx, 0); err != nil {
			return false, err
		}
		goesOn = true
	}
	// The watch also reports what has happened since rev, but up to 100 ms late: etcd serves watches that begin in the
	// past every 100 ms.
	key, opts := h.leader.Key, []clientv3.OpOption{clientv3.WithRev(h.rev + 1)}
	if h.leader.None() {
		// The queue is empty, so deletions change nothing.
		key, opts = h.at.prefix, append(opts, queue.InQueue(h.at.prefix), clientv3.WithFilterDelete())
	}
	wctx, opened, cancel := h.out.Streams.Watch(ctx)
	// Watch returns when the server has confirmed the watch, or with a channel that is closed.
	events := h.out.Conn.Client.Watch(wctx, key, opts...)
	opened()
	h.watchNoMore() // after the new watch exists: the client closes a stream without watches
	h.unwatch = cancel
	h.show() // after the new watch exists: an observer that leaves now leaves no watch half opened
	if !goesOn {
		err := h.read(wctx, h.rev) // a restored cluster may have passed rev already, with other keys
		if err != nil && wctx.Err() == nil {
			return false, err
		}
		if err != nil || h.rev == 0 {
			return false, nil //nolint:nilerr // the watch has ended, or begins at a revision of another history
		}
	}
	for {
		resp, ok := etcd.Next(wctx, events)
		if etcd.TooMuch(resp.Err()) {
			h.rev = 0 // the changes since then are too large for the client
		}
		if !ok || resp.Err() != nil {
			return false, nil //nolint:nilerr // the watch broke: run opens another
		}
		if next := h.apply(resp.Events); next > 0 {
			return true, h.read(ctx, next)
		}
	}
}

// apply takes in the events of a watch, which are in order and never split a revision. It returns the revision at which
// the leader has ended or somebody has begun to lead, 0 if there is none. Another watch then takes over.
func (h *hub) apply(events []*clientv3.Event) (next int64) {
	nobody := h.leader.None()
	for _, ev := range events {
		rev := ev.Kv.ModRevision
		contends := ev.Type == mvccpb.Event_PUT && queue.Contends(h.at.prefix, ev.Kv)
		switch {
		case rev <= h.rev:
		case contends == nobody: // a leader's key can also be taken off its lease
			return rev
		case contends:
			h.learn(newLeader(ev.Kv), rev)
			h.show()
		}
	}
	if n := len(events); nobody && n > 0 {
		h.learn(Leader{}, max(h.rev, events[n-1].Kv.ModRevision))
	}
	return 0
}

// read learns who leads now or, if at is not 0, who led at that revision. If at is rev, it compares that with what is
// known. Reads are linearizable, so a member that does not know the revision at belongs to a restored cluster. A
// revision that was compacted is as good as none: the changes since are lost.
func (h *hub) read(ctx context.Context, at int64) error {
	var opts []clientv3.OpOption
	if at > 0 {
		opts = append(opts, clientv3.WithRev(at))
	}
	return h.out.Conn.Do(ctx, readAttempt, func(a *etcd.Attempt) error {
		l, now, err := leading(a, h.at.prefix, h.leader, opts...)
		switch {
		case at > 0 && errors.Is(err, rpctypes.ErrCompacted):
			h.rev = 0
		case at > 0 && errors.Is(err, rpctypes.ErrFutureRev):
			h.restored()
		case err != nil:
			return err
		case at == 0:
			// Within one history, revisions and tokens only grow.
			if now < h.look.Seen.Load() || !l.None() && l.Revision < h.highest && l.Revision != h.leader.Revision {
				h.restored()
			}
			h.learn(l, now)
			h.shown = false // an observer's own read may have shown another one meanwhile
		case at > h.rev:
			h.learn(l, at)
		case l != h.leader:
			h.restored()
		}
		return nil
	})
}

// restored begins another history, after the cluster's revisions went back.
func (h *hub) restored() {
	h.leader, h.rev, h.highest = Leader{}, 0, 0
	h.look.Seen.Store(0)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.history++
}

// learn records l as the leader at rev.
func (h *hub) learn(l Leader, rev int64) {
	h.shown = h.shown && l == h.leader
	h.leader, h.rev, h.highest = l, rev, max(h.highest, l.Revision)
	h.look.Seen.Store(rev)
}

// show shows the leader to the observers, unless they have been shown it.
func (h *hub) show() {
	if h.shown {
		return
	}
	h.shown = true
	h.mu.Lock()
	defer h.mu.Unlock()
	h.log.add(sighting{h.leader, h.rev, h.history})
	h.signal()
}

// fail ends the hub with err for its present observers. The next observer gets a new hub.
func (h *hub) fail(err error) {
	hubs.mu.Lock()
	h.forget()
	hubs.mu.Unlock()
	h.out.Leave(&h.look)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = err
	h.signal()
}

// signal wakes the observers that wait in next. The caller holds mu.
func (h *hub) signal() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// latest returns the number of the sighting that comes next, and the present history.
func (h *hub) latest() (next, history int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.log.end(), h.history
}

// next waits for sighting number n and returns it, or the latest if n is not kept any more, with the number of the one
// after it. The error is ctx's cause or the hub's.
func (h *hub) next(ctx context.Context, n int) (sighting, int, error) {
	for {
		h.mu.Lock()
		s, after, ok := h.log.at(n)
		err, changed := h.err, h.changed
		h.mu.Unlock()
		if ok || err != nil {
			return s, after, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return sighting{}, n, context.Cause(ctx)
		}
	}
}

// How far an observer may be behind before it skips to the latest.
const (
	maxSightings = 128     // changes
	maxBytes     = 1 << 20 // bytes of values, if there is more than one change
)

// sighting is who led from a revision on.
type sighting struct {
	leader  Leader
	rev     int64
	history int // revisions of different histories do not compare; see hub.history
}

// backlog keeps the latest sightings for observers that are behind. Sightings are numbered from 0.
type backlog struct {
	first int // the number of kept[0]
	kept  []sighting
	bytes int // of values in kept
}

// end is the number of the next sighting.
func (b *backlog) end() int { return b.first + len(b.kept) }

func (b *backlog) add(s sighting) {
	b.kept = append(b.kept, s)
	b.bytes += len(s.leader.Value)
	for len(b.kept) > 1 && (len(b.kept) > maxSightings || b.bytes > maxBytes) {
		b.bytes -= len(b.kept[0].leader.Value)
		b.kept[0] = sighting{} // frees its value, which the array would keep
		b.kept = b.kept[1:]
		b.first++
	}
}

// at returns sighting number n, or the latest if n is not kept any more, and the number of the next one. Ok is false if
// n is yet to come.
func (b *backlog) at(n int) (s sighting, next int, ok bool) {
	if n >= b.end() {
		return sighting{}, n, false
	}
	if n < b.first {
		n = b.end() - 1
	}
	return b.kept[n-b.first], n + 1, true
}
