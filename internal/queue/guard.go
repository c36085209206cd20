package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/retry"
)

// End is what became of an entry's key.
type End int

// The ends that Guards tell apart.
const (
	Deleted     End = iota + 1 // by somebody else, or with the lease
	Overwritten                // by somebody else, who took it off its lease; the key is still there
)

// GuardAfter is how long an entry stands in its queue before its key is watched. Shorter critical sections do not
// pay for a watch; longer ones learn of a revoked lease or a deleted key by it.
const GuardAfter = 250 * time.Millisecond

// Guarded is an entry that stands in its queue and the functions that are told, once or more often and without delay
// of their own, what others do to its key.
type Guarded struct {
	Entry

	Ended   func(End)       // it has been deleted or overwritten
	Touched func(rev int64) // it was written then, by whomever, and is still the entry's; may be nil
}

// Guards tell when keys of one lease are deleted or written by somebody else. They watch spans of keys: few
// entries have a watch each, many share some, so that an entry costs no more than its place in a map. A shared
// watch tells of other contenders' keys too, which lie between; those are passed over.
//
// It must not be copied; its fields are set before its first use.
type Guards struct {
	Queue *Queue
	Life  context.Context                  //nolint:containedctx // of the lease: nothing is watched after it
	Spawn func(func(context.Context)) bool // runs a function in a goroutine; false if it is too late for that
	Warn  func(err error)                  // told of keys that cannot be watched

	mu      sync.Mutex             // guards the fields below, and the spans'
	young   map[*Guarded]time.Time // not watched yet, and since when
	old     map[string]*Guarded    // the others, by key
	spans   []*span                // in which every key of old is
	alone   bool                   // spans of several keys are not permitted to us
	ticking bool
}

// Add begins to guard e, if it does not yet.
func (w *Guards) Add(e *Guarded) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.young == nil {
		w.young, w.old = make(map[*Guarded]time.Time), make(map[string]*Guarded)
	}
	if _, young := w.young[e]; young || w.old[e.Key] == e {
		return
	}
	w.young[e] = time.Now()
	// One timer serves them all, and it is left to run when an entry goes: a timer per entry would wake the scheduler
	// with each short critical section.
	if !w.ticking {
		w.ticking = true
		time.AfterFunc(GuardAfter, w.tick)
	}
}

// Remove ends the guard of e. Its function may be running, or about to be.
func (w *Guards) Remove(e *Guarded) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.young, e)
	if w.old[e.Key] != e {
		return
	}
	delete(w.old, e.Key)
	w.drop(func(s *span) bool { return len(w.old) == 0 || s.only(e.Key) })
}

// tick has the entries watched whose time has come, and comes again for the others.
func (w *Guards) tick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	var due []*Guarded
	next := GuardAfter
	for e, since := range w.young {
		if left := GuardAfter - time.Since(since); left > 0 {
			next = min(next, left)
			continue
		}
		delete(w.young, e)
		w.old[e.Key] = e
		due = append(due, e)
	}
	w.cover(due)
	if w.ticking = len(w.young) > 0; w.ticking {
		time.AfterFunc(max(next, GuardAfter/10), w.tick) // not for each of many by itself
	}
}

// verify reads the keys of entries and tells what has become of those that are not as they were put. Entries for
// which skip is true by then are passed over.
func (q *Queue) verify(ctx context.Context, list []*Guarded, skip func(*Guarded) bool) error {
	var written []*Guarded // is known by the key alone, but not whether it has its lease still
	err := q.readEach(ctx, list, func(e *Guarded, kv *mvccpb.KeyValue) {
		switch {
		case kv != nil && kv.CreateRevision == e.Rev && kv.ModRevision == e.Rev, skip(e):
		case kv != nil && kv.CreateRevision == e.Rev:
			written = append(written, e)
		default:
			e.Ended(Deleted)
		}
	}, clientv3.WithKeysOnly())
	if err != nil {
		return err
	}
	return q.readEach(ctx, written, func(e *Guarded, kv *mvccpb.KeyValue) {
		switch {
		case skip(e):
		case kv == nil || kv.CreateRevision != e.Rev:
			e.Ended(Deleted)
		default:
			e.written(kv)
		}
	})
}

// readEach reads the keys of entries, many at a time.
func (q *Queue) readEach(ctx context.Context, list []*Guarded, use func(*Guarded, *mvccpb.KeyValue), opts ...clientv3.OpOption) error {
	const most = 100 // within the server's default limit of 128 operations
	return inParts(list, most, func(part []*Guarded) error {
		gets := make([]clientv3.Op, len(part))
		for i, e := range part {
			gets[i] = clientv3.OpGet(e.Key, opts...)
		}
		var resp *clientv3.TxnResponse
		err := retry.Do(ctx, q.Client, q.Attempt, func(ctx context.Context) (err error) {
			resp, err = retry.Txn(ctx, q.Client, nil, gets, nil)
			return err
		})
		if err != nil {
			return err
		}
		for i, e := range part {
			use(e, first(resp.Responses[i].GetResponseRange().Kvs))
		}
		return nil
	})
}

// inParts sends a list in transactions of at most so many; where the server's limit is lower, it is learnt.
func inParts[T any](list []T, most int, send func([]T) error) error {
	for len(list) > 0 {
		part := list[:min(most, len(list))]
		err := send(part)
		switch {
		case errors.Is(err, rpctypes.ErrTooManyOps) && len(part) > 1:
			most = len(part) / 2
		case err != nil:
			return err
		default:
			list = list[len(part):]
		}
	}
	return nil
}

// written is told that e's key was put again, as kv.
func (e *Guarded) written(kv *mvccpb.KeyValue) {
	switch {
	case clientv3.LeaseID(kv.Lease) != e.Lease:
		e.Ended(Overwritten)
	case e.Touched != nil:
		e.Touched(kv.ModRevision)
	}
}

// tell passes on what a watch has told.
func (w *Guards) tell(events []*clientv3.Event) {
	for _, ev := range events {
		w.mu.Lock()
		e := w.old[string(ev.Kv.Key)]
		w.mu.Unlock()
		switch {
		case e == nil, ev.Kv.ModRevision <= e.Rev: // another's, or the entry's own, or that of an earlier one
		case ev.Type == clientv3.EventTypeDelete:
			e.Ended(Deleted)
		default:
			e.written(ev.Kv)
		}
	}
}

// refused is told that the server does not let us watch s.
func (w *Guards) refused(s *span, err error) {
	w.mu.Lock()
	var keys []*Guarded
	for _, e := range w.old {
		if s.covers(e.Key) {
			keys = append(keys, e)
		}
	}
	several := !s.only(s.low)
	w.drop(func(o *span) bool { return o == s })
	if several {
		// It lets us watch each key, perhaps: a user may have permission name by name.
		w.alone = true
		w.cover(keys)
	}
	w.mu.Unlock()
	if !several {
		w.Warn(fmt.Errorf("a key below %q cannot be watched: %w", Below([]byte(s.low)), err))
	}
}
