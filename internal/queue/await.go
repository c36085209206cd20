package queue

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Queue waits in queues through one client. Its fields are set before its first use.
type Queue struct {
	Client  *clientv3.Client
	Streams *Streams
	Attempt time.Duration          // the bound of a request's first attempt, see Retry
	Report  func(*mvccpb.KeyValue) // told of keys in the queue that are no contenders; may be nil
}

// Await returns nil when e, which has entered, is the oldest contender. It returns ErrGone if e's key is gone,
// and ctx's cause when ctx ends.
func (q *Queue) Await(ctx context.Context, e Entry) error {
	var ahead *mvccpb.KeyValue
	look := func(ctx context.Context) (err error) {
		ahead, err = q.ahead(ctx, e)
		return err
	}
	if err := Retry(ctx, q.Client, q.Attempt, look); err != nil {
		return err
	}
	var b Backoff
	for ahead != nil {
		waitFor := ahead
		err := q.watch(ctx, string(waitFor.Key), func(ctx context.Context, events clientv3.WatchChan) error {
			// The contender may have gone before the watch existed; from here on the watch tells. A read that
			// began after the watch existed sees all that the watch does not, on whatever members the two are.
			if err := Retry(ctx, q.Client, q.Attempt, look); err != nil {
				return err
			}
			if ahead != nil && ahead.CreateRevision == waitFor.CreateRevision {
				untilDeleted(events)
			}
			return nil
		}, clientv3.WithFilterPut())
		if err != nil {
			return err
		}
		if err := Retry(ctx, q.Client, q.Attempt, look); err != nil {
			return err
		}
		if ahead == nil || ahead.CreateRevision != waitFor.CreateRevision {
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

// untilDeleted returns when the watched key is deleted or the watch has broken.
func untilDeleted(events clientv3.WatchChan) {
	for resp := range events {
		if resp.Err() != nil || len(resp.Events) > 0 {
			return
		}
	}
}

// watch opens a watch on key, from now on, and calls use once it exists. What a watch says is only that it is
// time to look, so one that broke (a compaction, a leader change, a stream, a suspect endpoint) is no error:
// the caller reads again, and the read finds what is final. The error is ctx's cause or use's.
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
