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
	puts   bool                   // it shows them too
	events clientv3.WatchChan
	ctx    context.Context //nolint:containedctx // of the watch: it ends with the lease, and with a suspect stream
	cancel func()          // ends it; it may be called again
	detach func() bool     // the end of the call's context does not end it any more; false: it has ended it
	timer  *time.Timer     // ends it while it is kept, and after a while in which it is relied on; nil: it is not to be kept
}

// open opens a watch on key, which sees what comes from now on, for a call whose context is ctx. It returns when the server has
// confirmed it or it has failed; there are no events then.
func (q *Queue) open(ctx context.Context, key string, opts ...clientv3.OpOption) *watch {
	life, opened, cancel := q.Conn.Streams(q.Bound).Watch(q.Life)
	w := &watch{key: key, puts: true, ctx: life, cancel: sync.OnceFunc(cancel)}
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
	if w.timer != nil {
		w.timer.Stop()
	}
	w.detach()
	w.cancel()
}

// watch opens a watch on key, from now on, and calls f once it exists.
func (q *Queue) watch(ctx context.Context, key string, f func(context.Context, *watch) error, opts ...clientv3.OpOption) error {
	w := q.open(ctx, key, opts...)
	defer w.close()
	return w.use(ctx, f)
}

// watchOn is a watch for c's end. With puts it shows what is written to c's key too.
//
// In a brisk queue the watch lasts for shortWait. It was kept, and shows all that came after c, or it is new and may be kept. Without puts
// it leaves out what is written: a key has two events a turn, and its put is half of what the watch costs. An overwritten key contends no
// more either; the look under the next watch finds that.
func (q *Queue) watchOn(ctx context.Context, c contender, brisk, puts bool) (w *watch, kept bool) {
	if !brisk {
		return q.open(ctx, c.key), false
	}
	if w := q.kept.take(ctx, c, puts); w != nil {
		return w, true
	}
	var opts []clientv3.OpOption
	if !puts {
		opts = append(opts, clientv3.WithFilterPut())
	}
	w = q.open(ctx, c.key, opts...)
	w.puts = puts
	w.timer = time.AfterFunc(shortWait, func() { q.kept.drop(w) })
	return w, false
}

const (
	// shortWait is how long each end that is waited for may take in a queue that is brisk. A wait relies on its watch there for so
	// long, too: a kept one may stand at a member that has fallen silent, which only the opening of a watch shows.
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
// another wait may have taken it. With puts it is one that shows them.
func (k *keptWatches) take(ctx context.Context, c contender, puts bool) *watch {
	k.mu.Lock()
	defer k.mu.Unlock()
	w := k.watches[c.key]
	if w == nil || c.rev <= w.since || puts && !w.puts {
		return nil
	}
	delete(k.watches, c.key)
	w.timer.Reset(shortWait) // if it has just gone off, the watch ends, as any watch may
	w.detach = context.AfterFunc(ctx, w.cancel)
	return w
}

// keep keeps w, if there is room, or ends it.
func (k *keptWatches) keep(w *watch) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !w.detach() || w.ctx.Err() != nil || k.watches[w.key] != nil || len(k.watches) >= mostKept {
		w.close()
		return
	}
	if k.watches == nil {
		k.watches = make(map[string]*watch)
	}
	k.watches[w.key] = w
	w.timer.Reset(keptFor)
}

// drop ends w, and keeps it no longer.
func (k *keptWatches) drop(w *watch) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.watches[w.key] == w {
		delete(k.watches, w.key)
	}
	w.cancel()
}
