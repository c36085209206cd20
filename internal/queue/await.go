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

// AwaitOwn is [Queue.Await] for an entry whose key an owner that leaves may delete in the same step, after it has written its own: it
// reads e's key after the end of such an owner.
func (q *Queue) AwaitOwn(ctx context.Context, e Entry, ahead Ahead) error {
	return q.await(ctx, e, ahead, true)
}

func (q *Queue) await(ctx context.Context, e Entry, ahead Ahead, own bool) error {
	known := true // ahead is as it was read, but for what a watch shows
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
	brisk, short := q.contended.of(e.rivals()).brisk, true // short: each end came soon
	for !ahead.None {
		c := ahead.first()
		began := time.Now()
		w, kept := q.watchOn(ctx, c, brisk, own)
		end, written := unended, false
		err := w.use(ctx, func(ctx context.Context, w *watch) error {
			// The contender may have gone before a new watch existed; from here on the watch tells. A read that
			// began after the watch existed sees all that the watch does not, on whatever members the two are.
			// A kept watch has shown all that came after the contender.
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
			brisk = false // a watch of its own shows more, for as long as it takes
			continue
		case ahead.first() != c: // as the look has found
			b.Reset()
			continue
		case end != unended && c == ahead.before:
			// The nearest is the owner now, if this one was. In a handing over it may have gone with it, and e too. What was
			// overwritten may be put back.
			known = end == Deleted && ahead.beforeOwner && !own
			ahead.before, ahead.Owner = contender{}, known
			b.Reset()
			continue
		case end == Deleted && ahead.Owner && !e.wentWith(c) && (!own || !ahead.written && !written):
			// Nobody was between it and e, and nobody comes before e any more: those who enter are younger.
			return nil
		}
		if err := look(ctx, false); err != nil {
			return err
		}
		if end != unended || ahead.first() != c {
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

// wentWith reports whether e's key may have gone in one step with that of c: both are on one lease.
func (e Entry) wentWith(c contender) bool {
	lease, _ := leaseIn(e.Prefix, []byte(c.key))
	return lease == int64(e.Lease)
}

// ended waits until the key that was created at rev ends its contention in the queue of prefix, or the watch breaks. Written says that
// the key was written before.
func (w *watch) ended(prefix string, rev int64) (end End, written bool) {
	for resp := range w.events {
		if resp.Err() != nil {
			return unended, written
		}
		for _, ev := range resp.Events { // all of them are taken
			w.since = max(w.since, ev.Kv.ModRevision)
		}
		for _, ev := range resp.Events {
			switch {
			case ev.Kv.ModRevision <= rev: // a member that is behind tells of an earlier key of the same name
			case ev.Type == clientv3.EventTypeDelete:
				return Deleted, written
			case !Contends(prefix, ev.Kv):
				return Overwritten, written
			default:
				written = true
			}
		}
	}
	return unended, written
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
