package queue

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
)

// Queue lets the entries of one lease enter and wait in queues. Its fields are set before its first use. It is safe
// for concurrent use.
type Queue struct {
	Life   context.Context            //nolint:containedctx // the life of the lease: it ends all watches
	Conn   *etcd.Conn                 // for reads and watches
	Line   *etcd.Line                 // for transactions that change queues
	Bound  time.Duration              // the bound of a request's first attempt, see etcd.Conn.Do
	Report func(prefix string, n int) // receives how many keys of a queue were ignored as no contenders; may be nil

	contended contention
	kept      keptWatches
}

// Await waits until e, which has entered, is the oldest contender; ahead is what is known of the older ones. It
// returns ErrGone if it finds e's own key gone, and ctx's cause when ctx ends.
//
// When e waits for the owner, one event ends the wait, and Await reads nothing after it. So it does not notice if
// somebody has deleted e's own key meanwhile: [Guards] report that.
func (q *Queue) Await(ctx context.Context, e Entry, ahead Ahead) error {
	return q.await(ctx, e, ahead, false)
}

// AwaitOwn is [Queue.Await] for an entry whose key the leaving owner may delete in the same transaction, as a leader
// does with the candidates that it passes over. Such an owner writes its own key before. So AwaitOwn reads e's key
// after the end of an owner whose key was written.
func (q *Queue) AwaitOwn(ctx context.Context, e Entry, ahead Ahead) error {
	return q.await(ctx, e, ahead, true)
}

func (q *Queue) await(ctx context.Context, e Entry, ahead Ahead, own bool) error {
	known := true // nothing has happened to the keys ahead since they were read but what the watches show
	look := func(ctx context.Context, check bool) error {
		return q.Conn.Do(ctx, q.Bound, func(a *etcd.Attempt) error {
			seen, err := q.look(a, e, ahead, check)
			if err == nil {
				ahead, known = seen, true
			}
			return err
		})
	}
	if !ahead.None && ahead.Key == "" {
		if err := look(ctx, false); err != nil {
			return err
		}
	}
	var b etcd.Backoff
	brisk, short := q.contended.of(e.rivals()).brisk, true // short: so far each end has come within shortWait
	for !ahead.None {
		c := ahead.first()
		began := time.Now()
		w, kept := q.watchOn(ctx, c, brisk, own)
		end, written := unended, false
		err := w.use(ctx, func(ctx context.Context, w *watch) error {
			// The contender may have gone before a new watch existed. A read that began after the watch existed sees
			// all that the watch does not show, even on another member. A kept watch shows everything since the
			// contender entered, and needs no read.
			if !kept || !known {
				if err := look(ctx, !kept); err != nil {
					return err
				}
			}
			if ahead.first() == c {
				end, written = w.ended(e.Prefix, c.rev)
			}
			return nil
		})
		broke := end == unended && ahead.first() == c
		short = short && !broke && time.Since(began) < shortWait
		if brisk && short {
			q.kept.keep(w)
		} else {
			w.close()
		}
		if err != nil {
			return err
		}
		q.contended.quicken(e.rivals(), short)
		switch {
		case broke && brisk:
			brisk = false // go on with a new watch, which is not limited to shortWait and also shows puts
			continue
		case ahead.first() != c: // the look has found another one
			b.Reset()
			continue
		case end != unended && c == ahead.before:
			// If this one was the owner, the nearest is now. That is not known if this one was overwritten, since it
			// may be put back on its lease, nor with own: the leaving owner may have deleted the nearest and e too.
			known = end == Deleted && ahead.beforeOwner && !own
			ahead.before, ahead.Owner = contender{}, known
			b.Reset()
			continue
		case end == Deleted && ahead.Owner && !e.wentWith(c) && (!own || !ahead.written && !written):
			// Nobody was between the owner and e, and nobody can get before e: contenders that enter are younger.
			return nil
		}
		if err := look(ctx, false); err != nil {
			return err
		}
		if end != unended || ahead.first() != c {
			b.Reset()
			continue
		}
		// The watch broke while the contender is still there. The pause is for a member that breaks each watch.
		if err := b.Sleep(ctx); err != nil {
			return err
		}
	}
	return nil
}

// wentWith reports whether e's key may have gone in the same revision as that of c: if both are on one lease, its end
// deletes both.
func (e Entry) wentWith(c contender) bool {
	lease, _ := leaseIn(e.Prefix, []byte(c.key))
	return lease == int64(e.Lease)
}

// ended waits until the contender that was created at rev is deleted or taken off its lease, or until the watch
// breaks. written reports whether the key was written before that.
func (w *watch) ended(prefix string, rev int64) (end End, written bool) {
	for {
		resp, ok := etcd.Next(w.ctx, w.events)
		if !ok || resp.Err() != nil {
			return unended, written
		}
		for _, ev := range resp.Events { // all are taken, though the loop below may return before the last
			w.since = max(w.since, ev.Kv.ModRevision)
		}
		for _, ev := range resp.Events {
			switch {
			case ev.Kv.ModRevision <= rev: // a member that lags shows an earlier key of the same name
			case ev.Type == clientv3.EventTypeDelete:
				return Deleted, written
			case !Contends(prefix, ev.Kv):
				return Overwritten, written
			default:
				written = true
			}
		}
	}
}

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
