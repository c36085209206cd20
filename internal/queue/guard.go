package queue

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// End is what became of an entry's key.
type End int

// The ends that Guard tells apart.
const (
	Deleted     End = iota + 1 // by somebody else, or with the lease
	Overwritten                // by somebody else; the key is still there
)

// Guard returns when e's key, which has entered, is deleted or overwritten by somebody else. The error is ctx's
// cause or the server's final word (a missing permission).
func (q *Queue) Guard(ctx context.Context, e Entry) (End, error) {
	var end End
	look := func(ctx context.Context) error {
		resp, err := q.Client.Get(ctx, e.Key, clientv3.WithKeysOnly())
		if err != nil {
			return err
		}
		switch kv := first(resp.Kvs); {
		case kv == nil, kv.CreateRevision != e.Rev:
			end = Deleted
		case kv.ModRevision != e.Rev:
			end = Overwritten
		}
		return nil
	}
	var b Backoff
	for {
		err := q.watch(ctx, e.Key, func(ctx context.Context, events clientv3.WatchChan) error {
			// As in Await: whatever happened before the watch existed shows in a read that began after it.
			if err := Retry(ctx, q.Client, q.Attempt, look); err != nil || end != 0 {
				return err
			}
			b.Reset()
			end = ending(events, e.Rev)
			return nil
		})
		if err != nil || end != 0 {
			return end, err
		}
		if err := b.Sleep(ctx); err != nil {
			return 0, err
		}
		// Until the next watch exists nothing tells, and that may take long where an endpoint is sick.
		if err := Retry(ctx, q.Client, q.Attempt, look); err != nil || end != 0 {
			return end, err
		}
	}
}

// ending waits for the end of the key that was put at rev; it returns 0 if the watch broke.
func ending(events clientv3.WatchChan, rev int64) End {
	for resp := range events {
		if resp.Err() != nil {
			return 0
		}
		for _, ev := range resp.Events {
			// A watch that resumes may repeat the revision at which it was opened.
			if ev.Kv.ModRevision <= rev {
				continue
			}
			if ev.Type == clientv3.EventTypeDelete {
				return Deleted
			}
			return Overwritten
		}
	}
	return 0
}
