package queue

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
)

// End is what has become of an entry's key, for a waiter behind it or for its guard.
type End int

// The ends of an entry's key.
const (
	unended     End = iota // no end is known: the watch broke
	Deleted                // by somebody else, or with the lease
	Overwritten            // by somebody else, who took it off its lease: it is no contender, and may stay for ever
	Unwanted               // the holder was asked to release, see [Ask]; the key is in the queue as before
)

const (
	// mostWatched is the most keys of one lease that have a watch. A watch costs a goroutine here and a watcher in
	// etcd, which this bounds for a session with thousands of locks.
	mostWatched = 256
	// mostRefused is the number of refused reads after which one pass of reading gives up. If all keys are forbidden,
	// it would otherwise send a request for each.
	mostRefused = 32
)

// GuardAfter is how long an entry is in its queue before its key is watched. Shorter critical sections do not pay for
// a watch. Longer ones notice a revoked lease or a deleted key by it.
const GuardAfter = 250 * time.Millisecond

// Guarded is an entry in its queue, with the functions that Guards call when others change its key. Each may be
// called more than once, and must not block.
type Guarded struct {
	Entry

	Ended   func(End)       // the key was deleted or overwritten, or the holder was asked to release
	Touched func(rev int64) // the key was written at rev, by anybody, and is still the entry's; may be nil

	refused bool // its last read was refused; guarded by Guards.mu
}

// Guards notice when keys of one lease are deleted or written by somebody else. Up to [mostWatched] keys have a watch
// each. The others are read in each period of Every, and get a watch when one is free.
//
// An entry is safe once its key has been read after its watch existed, for as long as the watch lasts: the read shows
// earlier changes and the watch shows later ones, even if they are on different members. A watch or a read that fails
// is repeated, whatever the error, for as long as the entry is guarded: a missing permission may be back in a moment,
// and the key may have been deleted meanwhile.
//
// Guards must not be copied. The exported fields are set before the first use. The methods are safe for concurrent use.
type Guards struct {
	Queue *Queue
	Spawn func(func(context.Context)) bool // runs a function in a goroutine; false if the owner has already ended
	Every time.Duration                    // the longest pause before a key without a watch is read
	Warn  func(err error)                  // receives why keys cannot be watched or read, at most once a minute

	mu      sync.Mutex                      // guards the fields below
	young   map[*Guarded]time.Time          // entries that are not guarded yet, and when they were added
	old     map[*Guarded]context.CancelFunc // the others, and the function that ends the watch; nil without a watch
	unread  map[*Guarded]struct{}           // entries to be read; those that were removed are read in vain
	watches int
	ticking bool // the timer for young runs
	looking bool // the timer for entries of old without a watch, or with a refused read, runs
	reading bool // the goroutine that reads unread runs
	warned  time.Time
}

// Add starts to guard e, unless it is guarded already.
func (w *Guards) Add(e *Guarded) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.young == nil {
		w.young, w.old = make(map[*Guarded]time.Time), make(map[*Guarded]context.CancelFunc)
		w.unread = make(map[*Guarded]struct{})
	}
	if _, young := w.young[e]; young || !w.isGone(e) {
		return
	}
	w.young[e] = time.Now()
	// One timer serves all entries, and it keeps running when an entry is removed: a timer for each entry would wake
	// the scheduler for each short critical section.
	if !w.ticking {
		w.ticking = true
		time.AfterFunc(GuardAfter, w.tick)
	}
}

// Remove ends the guard of e. A function of e may still be running, or about to run.
func (w *Guards) Remove(e *Guarded) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if end := w.old[e]; end != nil {
		end()
		w.watches--
	}
	delete(w.young, e)
	delete(w.old, e)
}

// isGone reports whether e is not guarded: it was removed, or is still young. w.mu must be held.
func (w *Guards) isGone(e *Guarded) bool {
	_, guarded := w.old[e]
	return !guarded
}

// tick starts to guard the entries that have been in their queues for GuardAfter, and restarts the timer for the
// others.
func (w *Guards) tick() {
	w.mu.Lock()
	defer w.mu.Unlock()
	next := GuardAfter
	for e, since := range w.young {
		if left := GuardAfter - time.Since(since); left > 0 {
			next = min(next, left)
			continue
		}
		delete(w.young, e)
		w.old[e] = nil
		if !w.watch(e) {
			w.look()
		}
	}
	if w.ticking = len(w.young) > 0; w.ticking {
		time.AfterFunc(max(next, GuardAfter/10), w.tick) // many young entries share a tick
	}
}

// watch gives e a watch and reports true, if fewer than mostWatched exist. w.mu must be held.
func (w *Guards) watch(e *Guarded) bool {
	if w.watches >= mostWatched {
		return false
	}
	ctx, cancel := context.WithCancel(w.Queue.Life)
	if ctx.Err() != nil || !w.Spawn(func(context.Context) { w.run(ctx, e) }) { // the lease may have ended before the owner
		cancel()
		return false
	}
	w.watches++
	w.old[e] = cancel
	return true
}

// look starts the timer that reads the keys without a watch once every period, and repeats refused reads. w.mu must be
// held.
func (w *Guards) look() {
	if w.looking || w.Queue.Life.Err() != nil {
		return
	}
	w.looking = true
	// Shorter than Every by more than the time for which a key is young: a change in that time is noticed within
	// Every too.
	time.AfterFunc(max(w.Every, time.Second)-2*GuardAfter, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.looking = false
		more := false
		for e, end := range w.old {
			unwatched := end == nil && !w.watch(e)
			if unwatched || e.refused {
				w.read(e)
			}
			more = more || unwatched
		}
		if more {
			w.look()
		}
	})
}

// run watches e's key until ctx ends, and opens another watch after each that broke.
func (w *Guards) run(ctx context.Context, e *Guarded) {
	const steady = time.Second // a watch that lasted longer resets the backoff
	var b etcd.Backoff
	for ctx.Err() == nil {
		began := time.Now()
		err := w.Queue.watch(ctx, e.Key, func(_ context.Context, on *watch) error { return w.serve(e, on) })
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > steady {
			b.Reset()
		}
		b.Longest = 0
		if err != nil {
			b.Longest = w.Every
			w.warn(e, "watched", err)
		}
		// Nothing shows changes until the next watch exists, which may take long with a sick endpoint.
		w.mu.Lock()
		w.read(e)
		w.mu.Unlock()
		_ = b.Sleep(ctx) // or ctx ends
	}
}

// serve handles the events of a watch until it breaks. An error means that the server denied permission.
func (w *Guards) serve(e *Guarded, on *watch) error {
	if on.first.Created {
		w.mu.Lock()
		w.read(e)
		w.mu.Unlock()
	}
	for resp, ok := on.first, true; ok; resp, ok = etcd.Next(on.ctx, on.events) {
		if err := resp.Err(); err != nil {
			if etcd.Denied(err) {
				return err
			}
			return nil // a watch that broke is opened again
		}
		for _, ev := range resp.Events {
			w.tell(e, ev)
		}
	}
	return nil
}

func (w *Guards) tell(e *Guarded, ev *clientv3.Event) {
	w.mu.Lock()
	gone := w.isGone(e)
	w.mu.Unlock()
	switch {
	case gone, ev.Kv.ModRevision <= e.Rev: // the entry's own put, or an event of an earlier entry with the same key
	case ev.Type == clientv3.EventTypeDelete:
		e.Ended(Deleted)
	default:
		e.written(ev.Kv)
	}
}

// written handles another put of e's key, kv.
func (e *Guarded) written(kv *mvccpb.KeyValue) {
	switch {
	case clientv3.LeaseID(kv.Lease) != e.Lease:
		e.Ended(Overwritten)
	case Asked(kv):
		e.Ended(Unwanted)
	case e.Touched != nil:
		e.Touched(kv.ModRevision)
	}
}

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
