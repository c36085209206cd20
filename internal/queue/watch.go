package queue

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
)

// watch is a watch on a key. One call at a time uses it, and the watch ends if that call's context ends.
type watch struct {
	key    string
	first  clientv3.WatchResponse // the confirmation that the watch exists, or the reason why it does not
	since  int64                  // events shows all later changes; earlier ones are not shown, or were taken from it
	puts   bool                   // events shows puts, not only deletions
	events clientv3.WatchChan
	ctx    context.Context //nolint:containedctx // of the watch: it ends with the lease, and with a suspect stream
	cancel func()          // ends the watch; it may be called again
	detach func() bool     // the end of the call's context no longer ends the watch; false: it has already done so
	timer  *time.Timer     // ends the watch after keptFor unused, or shortWait in one wait; nil: it is not to be kept
}

// open opens a watch on key from the present revision on, for a call whose context is ctx. It returns when the server
// has confirmed the watch, or when it has failed and will show no events.
func (q *Queue) open(ctx context.Context, key string, opts ...clientv3.OpOption) *watch {
	life, opened, cancel := q.Conn.Streams(q.Bound).Watch(q.Life)
	w := &watch{key: key, puts: true, ctx: life, cancel: sync.OnceFunc(cancel)}
	w.detach = context.AfterFunc(ctx, w.cancel)
	opts = append(opts, clientv3.WithCreatedNotify())
	w.events = q.Conn.Client.Watch(life, key, opts...) // it may outlive the call
	w.first, _ = etcd.Next(life, w.events)
	w.since = w.first.Header.GetRevision()
	opened()
	return w
}

// use calls f with the watch and returns ctx's cause or f's error. That the watch broke (a compaction, a leader
// change, a broken or suspect stream) is no error: the caller reads again, and the read finds any final error.
func (w *watch) use(ctx context.Context, f func(context.Context, *watch) error) error {
	err := f(w.ctx, w)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case w.ctx.Err() != nil:
		return nil //nolint:nilerr // the watch broke
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

// watch opens a watch on key from the present revision on, and calls f once it exists.
func (q *Queue) watch(ctx context.Context, key string, f func(context.Context, *watch) error, opts ...clientv3.OpOption) error {
	w := q.open(ctx, key, opts...)
	defer w.close()
	return w.use(ctx, f)
}

// watchOn returns a watch that shows c's end; with puts it also shows the puts of c's key.
//
// In a brisk queue the watch ends after shortWait. It is a kept one, which shows everything since c was created, or a
// new one, which may be kept afterwards. Without puts it filters them out: a key has a put and a deletion in each
// turn, so half of the events go. Such a watch does not show that c was taken off its lease: the look under the next
// watch, after shortWait, finds it.
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
	// shortWait bounds the ends of a brisk queue: each one in the last wait came within it. A wait in a brisk queue
	// also relies on one watch for no longer than that: a kept watch may be on a member that has fallen silent, which
	// only the opening of another watch shows.
	shortWait = GuardAfter
	// keptFor is how long an unused watch is kept.
	keptFor = time.Second
	// mostKept is the most watches of one lease that are kept.
	mostKept = 64
)

// keptWatches are the watches of short waits, kept for the next waits for the same keys. Where sessions take a lock
// in turns, each contender waits behind the same key every time, since keys are used again. A kept watch saves
// opening one and the read after that: with two or three sessions a turn then takes two requests.
type keptWatches struct {
	mu      sync.Mutex // guards the field below
	watches map[string]*watch
}

// take returns the kept watch on c's key, for a call whose context is ctx. It returns nil if none is kept, if the
// kept one does not show puts and puts is set, or if it may not show c's end: readers of one session wait for the
// same key at the same time, so the watch may have begun after the end, or another wait may have taken the event from
// it.
func (k *keptWatches) take(ctx context.Context, c contender, puts bool) *watch {
	k.mu.Lock()
	defer k.mu.Unlock()
	w := k.watches[c.key]
	if w == nil || c.rev <= w.since || puts && !w.puts {
		return nil
	}
	delete(k.watches, c.key)
	w.timer.Reset(shortWait) // if the timer has just fired, the watch ends, as any watch may
	w.detach = context.AfterFunc(ctx, w.cancel)
	return w
}

// keep keeps w for the next wait. It closes w if w has ended, if there is no room or if there already is a watch on
// that key.
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

// drop ends w and does not keep it any longer.
func (k *keptWatches) drop(w *watch) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.watches[w.key] == w {
		delete(k.watches, w.key)
	}
	w.cancel()
}
