package queue

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// watch is a watch on a key. One call at a time uses it, and the watch ends if that call's context ends.
type watch struct {
	key    string
	first  clientv3.WatchResponse // that it exists, or why it does not
	since  int64                  // it shows what comes after this revision: what came before is not shown, or was taken from events
	events clientv3.WatchChan
	ctx    context.Context //nolint:containedctx // of the watch: it ends with the lease, and with a suspect stream
	cancel func()          // ends it; it may be called again
	detach func() bool     // the end of the call's context does not end it any more; false: it has ended it
	timer  *time.Timer     // ends it while it is kept, and after a while in which it was relied on
}

// open opens a watch on key, which sees what comes from now on, for a call whose context is ctx. It returns when the server has
// confirmed it or it has failed; there are no events then.
func (q *Queue) open(ctx context.Context, key string, opts ...clientv3.OpOption) *watch {
	life, opened, cancel := q.Conn.Streams(q.Bound).Watch(q.Life)
	w := &watch{key: key, ctx: life, cancel: sync.OnceFunc(cancel)}
	w.detach = context.AfterFunc(ctx, w.cancel)
	opts = append(opts, clientv3.WithCreatedNotify())
	w.events = q.Conn.Client.Watch(life, key, opts...) //nolint:contextcheck // it may outlive the call
	w.first = <-w.events
	w.since = w.first.Header.GetRevision()
	opened()
	return w
}

// use calls f with the watch. A watch that broke (a compaction, a leader change, a stream, a suspect endpoint) is no error: the
// caller reads again, and the read finds what is final. The error is ctx's cause or f's.
func (w *watch) use(ctx context.Context, f func(context.Context, *watch) error) error {
	err := f(w.ctx, w) //nolint:contextcheck // it ends with ctx: see detach
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case w.ctx.Err() != nil:
		return nil //nolint:nilerr // see above
	}
	return err
}

func (w *watch) close() {
	w.stopTimer()
	w.detach()
	w.cancel()
}

func (w *watch) stopTimer() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// watch opens a watch on key, from now on, and calls f once it exists.
func (q *Queue) watch(ctx context.Context, key string, f func(context.Context, *watch) error, opts ...clientv3.OpOption) error {
	w := q.open(ctx, key, opts...)
	defer w.close()
	return w.use(ctx, f)
}

// watchOn is a watch for c's end: one that was kept, which shows all that came after c, or a new one.
func (q *Queue) watchOn(ctx context.Context, c contender) (w *watch, kept bool) {
	if w := q.kept.take(ctx, c); w != nil {
		return w, true
	}
	return q.open(ctx, c.key), false
}

const (
	// shortWait is how long a wait may take whose watch is kept. A wait relies on a kept watch for so long, too: it may stand
	// at a member that has fallen silent, which only the opening of a watch shows.
	shortWait = GuardAfter
	// keptFor is how long a watch is kept that nobody uses.
	keptFor = time.Second
	// mostKept is how many watches of one lease are kept.
	mostKept = 64
)

// keptWatches are watches of waits that were short, for the next waits for the same keys: where a lock goes round, each
// contender stands behind the same key each time, since keys are used again.
type keptWatches struct {
	mu      sync.Mutex // guards the field below
	watches map[string]*watch
}

// take returns the watch on c's key for a call whose context is ctx, to wait for c's end. It returns nil if none is kept, or if that
// may not show the end: readers of one session wait for the same key at the same time, so the watch may have begun after the end, or
// another wait may have taken it.
func (k *keptWatches) take(ctx context.Context, c contender) *watch {
	k.mu.Lock()
	defer k.mu.Unlock()
	w := k.watches[c.key]
	if w == nil || c.rev <= w.since {
		return nil
	}
	delete(k.watches, c.key)
	w.timer.Stop() // if it has gone off, the watch has ended, as any watch may
	w.timer = time.AfterFunc(shortWait, w.cancel)
	w.detach = context.AfterFunc(ctx, w.cancel)
	return w
}

// keep keeps w, if there is room, or ends it.
func (k *keptWatches) keep(w *watch) {
	k.mu.Lock()
	defer k.mu.Unlock()
	w.stopTimer()
	if !w.detach() || w.ctx.Err() != nil || k.watches[w.key] != nil || len(k.watches) >= mostKept {
		w.cancel()
		return
	}
	if k.watches == nil {
		k.watches = make(map[string]*watch)
	}
	k.watches[w.key] = w
	w.timer = time.AfterFunc(keptFor, func() { k.drop(w) })
}

// drop ends w, if it is still kept.
func (k *keptWatches) drop(w *watch) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.watches[w.key] == w {
		delete(k.watches, w.key)
		w.cancel()
	}
}
