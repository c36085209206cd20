package queue

import (
	"context"
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
