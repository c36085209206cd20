package queue

import (
	"context"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/leasefence/leasefence/internal/etcd"
)

// End is what became of an entry's key, or is to, whoever looks: who waits behind it or who guards it.
type End int

// The ends that are told apart.
const (
	unended     End = iota // as far as is known: the watch broke
	Deleted                // by somebody else, or with the lease
	Overwritten            // by somebody else, who took it off its lease: it contends no more, and the key may stay for ever
	Unwanted               // it was asked to let go, see [Ask], and stands in the queue as before
)

const (
	// mostWatched is how many keys of one lease have a watch.
	mostWatched = 256
	// mostRefused is how many reads of one pass may be refused.
	mostRefused = 32
)

// GuardAfter is how long an entry stands in its queue before its key is watched. Shorter critical sections do not
// pay for a watch; longer ones learn of a revoked lease or a deleted key by it.
const GuardAfter = 250 * time.Millisecond

// Guarded is an entry that stands in its queue and the functions that are called, once or more often and without delay
// of their own, what others do to its key.
type Guarded struct {
	Entry

	Ended   func(End)       // it has been deleted or overwritten, or is asked to end
	Touched func(rev int64) // it was written then, by whomever, and is still the entry's; may be nil

	refusals int  // of reads, in a row; under Guards.mu, as is the next
	later    bool // a refused read is due to be repeated
}

// Guards tell when keys of one lease are deleted or written by somebody else. Up to [mostWatched] keys have a watch
// each. The others are read with each period of Every, and get a watch when one is free.
//
// An entry is safe once its key has been read after its watch existed, for as long as the watch goes on: what came
// before shows in the read, what comes after in the watch, on whatever members the two are. A watch or a read that
// fails is tried again, whatever the reason, for as long as the entry is guarded: a permission that is missing now
// may be back in a moment, and the key may have been deleted meanwhile.
//
// It must not be copied; its fields are set before its first use.
type Guards struct {
	Queue *Queue
	Spawn func(func(context.Context)) bool // runs a function in a goroutine; false if it is too late for that
	Every time.Duration                    // the longest pause before a key without a watch is read
	Warn  func(err error)                  // receives, now and then, why keys cannot be watched or read

	mu      sync.Mutex                      // guards the fields below
	young   map[*Guarded]time.Time          // not guarded yet, and since when
	old     map[*Guarded]context.CancelFunc // the others, and what ends the watch; nil without one
	unread  map[*Guarded]struct{}           // of old, to be read
	watches int
	ticking bool // a timer looks after young
	looking bool // a timer looks after those of old without a watch
	reading bool
	warned  time.Time
}

// Add begins to guard e, if it does not yet.
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
	if end := w.old[e]; end != nil {
		end()
		w.watches--
	}
	delete(w.young, e)
	delete(w.old, e)
	delete(w.unread, e)
}

// isGone reports whether e is not guarded any more. w.mu must be held.
func (w *Guards) isGone(e *Guarded) bool {
	_, guarded := w.old[e]
	return !guarded
}

// tick has the entries guarded whose time has come, and comes again for the others.
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
		time.AfterFunc(max(next, GuardAfter/10), w.tick) // not for each of many by itself
	}
}

// watch gives e a watch, if there is one left. w.mu must be held.
func (w *Guards) watch(e *Guarded) bool {
	if w.watches >= mostWatched {
		return false
	}
	ctx, cancel := context.WithCancel(w.Queue.Life)
	if ctx.Err() != nil || !w.Spawn(func(context.Context) { w.run(ctx, e) }) { // the lease's life ends before the session's
		cancel()
		return false
	}
	w.watches++
	w.old[e] = cancel
	return true
}

// look has the keys without a watch read after a while, again and again. w.mu must be held.
func (w *Guards) look() {
	if w.looking || w.Queue.Life.Err() != nil {
		return
	}
	w.looking = true
	// A bit early, so that what happened to a key in its first moments is noticed within the period too.
	time.AfterFunc(max(w.Every, time.Second)-2*GuardAfter, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.looking = false
		more := false
		for e, end := range w.old {
			if end == nil && !w.watch(e) {
				w.read(e)
				more = true
			}
		}
		if more {
			w.look()
		}
	})
}

// run keeps e's key watched until ctx ends.
func (w *Guards) run(ctx context.Context, e *Guarded) {
	const steady = time.Second // a watch that lasts so long is no reason to wait before the next
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
		// Until the next watch exists nothing tells, and that may take long where an endpoint is sick.
		w.mu.Lock()
		w.read(e)
		w.mu.Unlock()
		_ = b.Sleep(ctx) // or ctx ends
	}
}

// serve works on a watch until it breaks. The error is that the server refuses it.
func (w *Guards) serve(e *Guarded, on *watch) error {
	if on.first.Created {
		w.mu.Lock()
		w.read(e)
		w.mu.Unlock()
	}
	for resp, ok := on.first, true; ok; resp, ok = <-on.events {
		if err := resp.Err(); err != nil {
			if denied(err) {
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
	case gone, ev.Kv.ModRevision <= e.Rev: // the entry's own put, or what became of an earlier one
	case ev.Type == clientv3.EventTypeDelete:
		e.Ended(Deleted)
	default:
		e.written(ev.Kv)
	}
}

// written notes that e's key was put again, as kv.
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

// denied reports whether a request was refused for want of permission. The server says so of a watch in words.
func denied(err error) bool {
	return etcd.Code(err) == codes.PermissionDenied || strings.Contains(err.Error(), rpctypes.ErrPermissionDenied.Error())
}
