package election

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/retry"
)

// hub watches one queue for all observers of its name.
type hub struct {
	source *source
	prefix string
	end    context.CancelFunc
	ended  chan struct{}

	view view         // its goroutine's own
	last Leader       // the latest in log; its goroutine's own
	seen atomic.Int64 // view.rev

	observers int // guarded by sources.mu

	mu      sync.Mutex // guards the fields below
	history int        // counts how often revisions have moved back
	log     backlog
	err     error         // that the hub has ended with
	changed chan struct{} // closed and replaced when log or err change
}

func newHub(s *source, prefix string) *hub {
	h := &hub{
		source: s, prefix: prefix, ended: make(chan struct{}),
		view: view{prefix: prefix}, changed: make(chan struct{}),
	}
	var ctx context.Context
	ctx, h.end = context.WithCancel(context.Background()) // it outlives the observer that it was made for
	go h.run(ctx)
	return h
}

// run follows the queue until ctx ends or something final happens.
func (h *hub) run(ctx context.Context) {
	defer close(h.ended)
	var b retry.Backoff
	for ctx.Err() == nil {
		began := time.Now()
		if err := h.follow(ctx); err != nil && ctx.Err() == nil {
			h.fail(err)
			return
		}
		if time.Since(began) > time.Second {
			b.Reset()
		}
		if b.Sleep(ctx) != nil {
			return
		}
	}
}

// follow is the life of one watch. A watch that broke (a compaction, a member without a leader, a suspect stream) is no
// error: the read that goes with the next one finds what is final.
func (h *hub) follow(ctx context.Context) error {
	wctx, opened, cancel := h.source.streams.Watch(ctx)
	defer cancel()
	opts := []clientv3.OpOption{clientv3.WithPrefix()}
	if h.view.rev > 0 {
		// What happened in the meantime is told too, though up to 100 ms late: so etcd serves watches that begin in
		// the past.
		opts = append(opts, clientv3.WithRev(h.view.rev+1))
	}
	// Watch returns when the server has confirmed the watch, or with a channel that is closed.
	events := h.source.client.Watch(wctx, h.prefix, opts...)
	opened()
	if err := retry.Do(wctx, h.source.client, readAttempt, h.read); err != nil {
		if wctx.Err() != nil {
			return nil
		}
		return err
	}
	if h.view.rev == 0 {
		return nil // the watch waits for a revision of another history
	}
	for resp := range events {
		if resp.CompactRevision != 0 {
			h.view.rev = 0 // what happened until there is not known any more
		}
		if resp.Err() != nil {
			return nil
		}
		h.view.apply(resp.Events, func() { h.publish(false) })
	}
	return nil
}

// read begins after the watch exists, so it sees all that a watch which begins with the present does not.
func (h *hub) read(ctx context.Context) error {
	if h.view.rev == 0 {
		all, rev, err := contenders(ctx, h.source.client, h.prefix)
		if err != nil {
			return err
		}
		h.view.reset(all, rev)
		h.publish(true)
		return nil
	}
	resp, err := retry.Get(ctx, h.source.client, h.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err == nil && resp.Header.Revision < h.view.rev {
		h.view.rev = 0
		h.seen.Store(0)
		h.mu.Lock()
		h.history++
		h.mu.Unlock()
	}
	return err
}

// publish shows the present leader to the observers if it is another one, or in any case: what one of them has read
// by itself may be neither that nor the one before.
func (h *hub) publish(anyway bool) {
	l, rev := h.view.leader(), h.view.rev
	h.seen.Store(rev)
	if l == h.last && !anyway {
		return
	}
	h.last = l
	h.mu.Lock()
	defer h.mu.Unlock()
	h.log.add(sighting{l, rev, h.history})
	h.signal()
}

// fail ends the hub for those who observe it now.
func (h *hub) fail(err error) {
	sources.mu.Lock()
	h.source.forget(h)
	sources.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = err
	h.signal()
}

// signal wakes those who wait. The caller holds mu.
func (h *hub) signal() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// latest is the number of the sighting that is to come next, and the history it belongs to unless it says otherwise.
func (h *hub) latest() (next, history int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.log.end(), h.history
}

// next waits for sighting number n, or the latest if that is not kept any more, and returns it with the number of the one
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
