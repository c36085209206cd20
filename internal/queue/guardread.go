package queue

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
)

// read lets a goroutine of its own read e's key: the events of the watch must not wait for an endpoint that does not
// answer. w.mu must be held.
func (w *Guards) read(e *Guarded) {
	if w.isGone(e) {
		return
	}
	e.refused = false
	w.unread[e] = struct{}{}
	if !w.reading && w.Queue.Life.Err() == nil {
		w.reading = w.Spawn(func(context.Context) { w.reads(w.Queue.Life) }) // the lease's life ends before the session's
	}
}

func (w *Guards) reads(ctx context.Context) {
	for {
		w.mu.Lock()
		list := slices.Collect(maps.Keys(w.unread))
		clear(w.unread)
		w.reading = len(list) > 0 && ctx.Err() == nil
		done := !w.reading
		w.mu.Unlock()
		if done {
			return
		}
		refused, err := w.Queue.verify(ctx, list, func(e *Guarded) bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.isGone(e)
		})
		if len(refused) > 0 && ctx.Err() == nil {
			w.warn(refused[0], "read", err)
			w.mu.Lock()
			for _, e := range refused {
				e.refused = true
			}
			w.look() // for the life of the lease, see read
			w.mu.Unlock()
		}
	}
}

// warn reports that e's key cannot be watched or read, at most once a minute.
func (w *Guards) warn(e *Guarded, what string, err error) {
	w.mu.Lock()
	now := time.Now()
	recent := !w.warned.IsZero() && now.Sub(w.warned) < time.Minute
	if !recent {
		w.warned = now
	}
	w.mu.Unlock()
	if !recent {
		w.Warn(fmt.Errorf("a key below %q cannot be %s and will be tried again: %w", Below([]byte(e.Key)), what, err))
	}
}

// verify reads the keys of entries, many at a time, and calls the functions of those whose keys have changed since they
// were put. It leaves out entries for which skip is then true. It returns the entries that were not read, and the error.
func (q *Queue) verify(ctx context.Context, list []*Guarded, skip func(*Guarded) bool) (unread []*Guarded, why error) {
	return etcd.InParts(list, etcd.PartSize, mostRefused, func(part []*Guarded) error {
		gets := make([]clientv3.Op, len(part))
		for i, e := range part {
			gets[i] = clientv3.OpGet(e.Key)
		}
		var resp *clientv3.TxnResponse
		err := q.Conn.Do(ctx, q.Bound, func(a *etcd.Attempt) (err error) {
			resp, err = a.Txn(nil, gets, nil)
			return err
		})
		if err != nil {
			return err
		}
		for i, e := range part {
			kv := first(resp.Responses[i].GetResponseRange().Kvs)
			switch {
			case kv != nil && kv.CreateRevision == e.Rev && kv.ModRevision == e.Rev: // as it was put, like nearly all
			case skip(e):
			case kv == nil || kv.CreateRevision != e.Rev:
				e.Ended(Deleted)
			default:
				e.written(kv)
			}
		}
		return nil
	})
}
