package queue

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/commit"
	"github.com/leasefence/leasefence/internal/retry"
)

// Queue is what one lease needs to stand in queues. Its fields are set before its first use.
type Queue struct {
	Client  *clientv3.Client // for reads and watches
	Line    *commit.Line     // for what changes the queues
	Streams *Streams
	Attempt time.Duration          // the bound of a request's first attempt, see retry.Do
	Report  func(*mvccpb.KeyValue) // told of keys in the queue that are no contenders; may be nil

	crowds crowds
}

// Await returns nil when e, which has entered, is the oldest contender; ahead is what is known of the others. It
// returns ErrGone if it finds e's own key gone, and ctx's cause when ctx ends.
//
// While it waits for the owner, it is served by one event and reads nothing after it. So it does not see that its
// own key has been deleted by somebody else in the meantime: that is for [Guards] to tell.
func (q *Queue) Await(ctx context.Context, e Entry, ahead Ahead) error {
	return q.await(ctx, e, ahead, func(a Ahead) bool { return a.None })
}

// await waits until what is ahead of e is enough.
func (q *Queue) await(ctx context.Context, e Entry, ahead Ahead, enough func(Ahead) bool) error {
	look := func(ctx context.Context) error {
		seen, err := q.look(ctx, e, ahead.Key)
		if err == nil {
			ahead = seen
		}
		return err
	}
	if !ahead.None && ahead.Key == "" {
		if err := retry.Do(ctx, q.Client, q.Attempt, look); err != nil {
			return err
		}
	}
	var b retry.Backoff
	for !enough(ahead) {
		waitFor, end := ahead, unended
		err := q.watch(ctx, waitFor.Key, func(ctx context.Context, events clientv3.WatchChan) error {
			// The contender may have gone before the watch existed; from here on the watch tells. A read that
			// began after the watch existed sees all that the watch does not, on whatever members the two are.
			if err := retry.Do(ctx, q.Client, q.Attempt, look); err != nil {
				return err
			}
			if ahead.same(waitFor) {
				end = ended(events, e.Prefix, ahead.Rev)
			}
			return nil
		})
		switch {
		case err != nil:
			return err
		case end == deleted && ahead.Owner:
			// Nobody was between it and e, and nobody comes before e any more: those who enter are younger.
			return nil
		case !ahead.same(waitFor): // as the look has found
			b.Reset()
			continue
		}
		if err := retry.Do(ctx, q.Client, q.Attempt, look); err != nil {
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

// ending is what became of the contender that is waited for.
type ending int

const (
	unended ending = iota // as far as is known: the watch broke
	deleted
	displaced // somebody has taken its key off its lease: it contends no more, and the key may stay for good
)

// ended waits until the key that was created at rev ends its contention in the queue of prefix, or the watch breaks.
func ended(events clientv3.WatchChan, prefix string, rev int64) ending {
	for resp := range events {
		if resp.Err() != nil {
			return unended
		}
		for _, ev := range resp.Events {
			switch {
			case ev.Kv.ModRevision <= rev: // a member that is behind tells of an earlier key of the same name
			case ev.Type == clientv3.EventTypeDelete:
				return deleted
			case !Contends(prefix, ev.Kv):
				return displaced
			}
		}
	}
	return unended
}

// watch opens a watch on key, from now on, and calls use once it exists. A watch that broke (a compaction, a leader
// change, a stream, a suspect endpoint) is no error: the caller reads again, and the read finds what is final. The
// error is ctx's cause or use's.
func (q *Queue) watch(ctx context.Context, key string, use func(context.Context, clientv3.WatchChan) error, opts ...clientv3.OpOption) error {
	wctx, opened, cancel := q.Streams.Watch(ctx)
	defer cancel()
	// Watch returns when the server has confirmed the watch, or with a channel that is closed.
	events := q.Client.Watch(wctx, key, opts...)
	opened()
	err := use(wctx, events)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case wctx.Err() != nil:
		return nil
	}
	return err
}
