package queue

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
)

// Queue is what one lease needs to stand in queues. Its fields are set before its first use.
type Queue struct {
	Life   context.Context            //nolint:containedctx // of the lease: nothing is watched after it
	Conn   *etcd.Conn                 // for reads and watches
	Line   *etcd.Line                 // for what changes the queues
	Bound  time.Duration              // the bound of a request's first attempt, see etcd.Do
	Report func(prefix string, n int) // receives how many keys of a queue were passed over that do not look like a contender's; may be nil

	contended contention
	kept      keptWatches
}

// Await returns nil when e, which has entered, is the oldest contender; ahead is what is known of the others. It
// returns ErrGone if it finds e's own key gone, and ctx's cause when ctx ends.
//
// While it waits for the owner, it is served by one event and reads nothing after it. So it does not see that its
// own key has been deleted by somebody else in the meantime: that is for [Guards] to tell.
func (q *Queue) Await(ctx context.Context, e Entry, ahead Ahead) error {
	return q.await(ctx, e, ahead, false)
}

// AwaitOwn is [Queue.Await] for an entry whose key others may delete in one step with the owner's: it has always seen e's own key
// once nobody was ahead.
func (q *Queue) AwaitOwn(ctx context.Context, e Entry, ahead Ahead) error {
	return q.await(ctx, e, ahead, true)
}

// await is Await, which reads e's own key at the end if own is set.
func (q *Queue) await(ctx context.Context, e Entry, ahead Ahead, own bool) error {
	look := func(a *etcd.Attempt) error {
		seen, err := q.look(a, e, ahead)
		if err == nil {
			ahead = seen
		}
		return err
	}
	if !ahead.None && ahead.Key == "" {
		if err := q.Conn.Do(ctx, q.Bound, look); err != nil {
			return err
		}
	}
	var b etcd.Backoff
	for !ahead.None {
		waitFor := ahead
		end, err := q.awaitKept(ctx, e, ahead)
		if err == nil && end == unended {
			began := time.Now()
			w := q.open(ctx, waitFor.Key)
			err = w.use(ctx, func(ctx context.Context, w *watch) error {
				// The contender may have gone before the watch existed; from here on the watch tells. A read that
				// began after the watch existed sees all that the watch does not, on whatever members the two are.
				if err := q.Conn.Do(ctx, q.Bound, look); err != nil {
					return err
				}
				if ahead.same(waitFor) {
					end = w.ended(e.Prefix, ahead.Rev)
				}
				return nil
			})
			if broke := end == unended && ahead.same(waitFor); err == nil && !broke && time.Since(began) < shortWait {
				q.kept.keep(w)
			} else {
				w.close()
			}
		}
		switch {
		case err != nil:
			return err
		case end == Deleted && ahead.Owner && !own:
			// Nobody was between it and e, and nobody comes before e any more: those who enter are younger.
			return nil
		case !ahead.same(waitFor): // as the look has found
			b.Reset()
			continue
		}
		if err := q.Conn.Do(ctx, q.Bound, look); err != nil {
			return err
		}
		if end != unended || !ahead.same(waitFor) {
			b.Reset()
			continue
		}
		// The same contender again: the watch broke. Do not spin on a member that breaks it each time.
		if err := b.Sleep(ctx); err != nil {
			return err
		}
	}
	return nil
}

// awaitKept waits for a short time, by a watch that was kept, for the end of the contender that is ahead of e. It returns unended
// if there is no such watch, or if the watch shows no end in that time.
//
// It reads nothing: a watch that shows what came after the contender shows its end.
func (q *Queue) awaitKept(ctx context.Context, e Entry, ahead Ahead) (end End, err error) {
	w := q.kept.take(ctx, ahead.Key, ahead.Rev)
	if w == nil {
		return unended, nil
	}
	enough := time.AfterFunc(shortWait, w.cancel)
	defer enough.Stop()
	err = w.use(ctx, func(_ context.Context, w *watch) error {
		end = w.ended(e.Prefix, ahead.Rev)
		return nil
	})
	if err == nil && end != unended {
		q.kept.keep(w)
	} else {
		w.close()
	}
	return end, err
}

// ended waits until the key that was created at rev ends its contention in the queue of prefix, or the watch breaks.
func (w *watch) ended(prefix string, rev int64) End {
	for resp := range w.events {
		if resp.Err() != nil {
			return unended
		}
		for _, ev := range resp.Events { // all of them are taken
			w.since = max(w.since, ev.Kv.ModRevision)
		}
		for _, ev := range resp.Events {
			switch {
			case ev.Kv.ModRevision <= rev: // a member that is behind tells of an earlier key of the same name
			case ev.Type == clientv3.EventTypeDelete:
				return Deleted
			case !Contends(prefix, ev.Kv):
				return Overwritten
			}
		}
	}
	return unended
}

// AwaitEnd waits until e, which is anybody's, contends no more, or may not.
func (q *Queue) AwaitEnd(ctx context.Context, e Entry) error {
	return q.watch(ctx, e.Key, func(ctx context.Context, w *watch) error {
		there := false
		err := q.Conn.Do(ctx, q.Bound, func(a *etcd.Attempt) error {
			resp, err := a.Get(e.Key)
			if err == nil {
				kv := first(resp.Kvs)
				there = kv != nil && kv.CreateRevision == e.Rev && Contends(e.Prefix, kv)
			}
			return err
		})
		if err == nil && there {
			w.ended(e.Prefix, e.Rev)
		}
		return err
	})
}
