package lease

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/clip"
	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/queue"
)

const (
	// lateFor is how long a request whose answer was lost may still arrive at the server: a connection that was cut off
	// delivers its buffer when it comes back, and Linux gives up on one after 924.6 s (ip-sysctl, tcp_retries2). A
	// request that arrives even later, from a paused host for example, is found by [grant.reclaim]; and no request puts
	// a key once the lease has ended.
	lateFor = 20 * time.Minute
	// firstLook is the first pause. On a sound network the deletion overtakes an abandoned request by a few
	// milliseconds at most.
	firstLook = 100 * time.Millisecond
)

// reaper deletes the keys of failed acquisitions, and of releases whose answer was lost, so that no attempt leaves an
// orphan in a queue. It works in the background until the server has confirmed or the lease has gone.
//
// The key of an attempt with an unknown outcome may still appear after it was found missing, when a request that was
// stuck in the network is delivered. So the reaper looks for it eight times in all: after [firstLook], after pauses
// that are each four times as long as the one before, and finally after [lateFor]. A late key therefore blocks its
// queue for at most four times its delay, or for firstLook if that is longer. Its name is not used again, so no other
// acquisition's key is ever deleted.
type reaper struct {
	g *grant

	mu        sync.Mutex // guards the fields below, and the orphans'
	orphans   map[string]*orphan
	running   bool
	warned    time.Time
	reported  int           // the last number that Hooks.CleanUp got
	reporting atomic.Bool   // a call of CleanUp waits
	wake      chan struct{} // of capacity 1: orphans has changed
}

type orphan struct {
	entry  queue.Entry
	late   bool          // the entering request may still arrive
	since  time.Time     // when it was added
	failed error         // why the last deletion failed
	pause  time.Duration // after the last look or refusal
	due    time.Time     // when to delete it, or to look for it again
}

// add takes over an entry to be deleted, and reports whether it was new. Late means that an attempt to enter had an
// unknown outcome.
func (r *reaper) add(e queue.Entry, late bool) bool {
	if late {
		r.g.burn(e)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, known := r.orphans[e.Key]
	r.orphans[e.Key] = &orphan{entry: e, late: late, since: time.Now()}
	if r.running {
		poke(r.wake)
	} else if r.running = r.g.s.spawn(r.run); !r.running {
		clear(r.orphans) // the session is closed
	}
	r.reportCleanUp()
	return !known
}

// flush tries once more to delete every orphan. It returns why keys may still be there, or may yet appear.
func (r *reaper) flush(ctx context.Context) error {
	r.mu.Lock()
	all := slices.Collect(maps.Values(r.orphans))
	r.mu.Unlock()
	r.sweep(ctx, all)
	if ctx.Err() != nil && len(all) > 0 {
		return context.Cause(ctx)
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	var failed, mayCome, both error
	for _, o := range r.orphans {
		switch {
		case o.failed != nil:
			failed = fmt.Errorf("a key below %q: %w", clip.To(o.entry.Prefix, shown), o.failed)
		case o.late:
			mayCome = fmt.Errorf("an acquisition's answer was lost, and its request may still put the key %q there", o.entry.Key)
		}
	}
	if len(r.orphans) > 1 {
		both = fmt.Errorf("%d keys are there, or may still come", len(r.orphans))
	}
	return errors.Join(failed, mayCome, both)
}

// run deletes what is due until no orphan is left, the server has dropped the lease with all its keys, or the session
// is closed.
func (r *reaper) run(ctx context.Context) {
	for ctx.Err() == nil {
		due, again, wait, more := r.next()
		if !more {
			return
		}
		r.sweep(ctx, due)
		r.sweep(ctx, again)
		if wait <= 0 {
			continue
		}
		pause := time.NewTimer(wait)
		select {
		case <-pause.C:
		case <-r.wake:
		case <-ctx.Done():
		}
		pause.Stop()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = false
	clear(r.orphans)
	r.reportCleanUp()
}

// next returns the orphans to delete now, or else how long to wait. Those that have failed before are returned apart:
// if etcd refuses one of them, it refuses the whole transaction. Orphans that are due soon join one that is due, so
// that many share a sweep.
func (r *reaper) next() (due, again []*orphan, wait time.Duration, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.g.expired() {
		clear(r.orphans)
		r.reportCleanUp()
	}
	r.running = len(r.orphans) > 0
	wait = math.MaxInt64
	for _, o := range r.orphans {
		left := time.Until(o.due)
		wait = min(wait, left)
		switch {
		case left > o.pause/4:
		case o.failed != nil:
			again = append(again, o)
		default:
			due = append(due, o)
		}
	}
	if wait > 0 {
		return nil, nil, wait, r.running
	}
	return due, again, 0, r.running
}

// sweep deletes orphans: each key only if it is the entry's. If it is unknown whether the entry ever entered, then only
// if the key is attached to our lease.
func (r *reaper) sweep(ctx context.Context, list []*orphan) {
	failed, err := etcd.InParts(list, etcd.PartSize, math.MaxInt, func(part []*orphan) error {
		ops := make([]clientv3.Op, len(part))
		for i, o := range part {
			ours := o.entry.Held()
			if o.late {
				ours = r.g.attached(o.entry.Key)
			}
			ops[i] = clientv3.OpTxn([]clientv3.Cmp{ours}, []clientv3.Op{clientv3.OpDelete(o.entry.Key)}, nil)
		}
		ctx, cancel := context.WithTimeout(ctx, r.g.ttl)
		defer cancel()
		err := r.g.commit(ctx, ops)
		if err == nil {
			r.confirm(part)
		}
		return err
	})
	if len(failed) > 0 && ctx.Err() == nil && r.postpone(failed, err) {
		r.g.s.log.Warn("keys of failed attempts not deleted yet", "keys", len(failed), "err", err)
	}
}

// attached compares true if a key is attached to the lease.
func (g *grant) attached(key string) clientv3.Cmp {
	return clientv3.Compare(clientv3.LeaseValue(key), "=", g.id)
}

// commit carries out operations in one transaction, at least once.
func (g *grant) commit(ctx context.Context, ops []clientv3.Op) error {
	return g.do(ctx, func(a *etcd.Attempt) error {
		_, err := a.Txn(nil, ops, nil)
		return err
	})
}

// confirm removes a batch that the server has deleted, except entries that may still appear, which it schedules for
// another look.
func (r *reaper) confirm(batch []*orphan) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.reportCleanUp()
	now := time.Now()
	for _, o := range batch {
		o.failed = nil
		end := o.since.Add(lateFor)
		switch {
		case r.orphans[o.entry.Key] != o: // added again meanwhile
		case o.late && now.Before(end):
			early := max(0, o.due.Sub(now)) // it joined one that was due
			o.pause = max(4*(o.pause-early), firstLook)
			o.due = now.Add(min(o.pause, end.Sub(now)))
		default:
			delete(r.orphans, o.entry.Key)
			r.g.recycle(o.entry)
		}
	}
}

// postpone schedules a failed batch: again after a third of the TTL or, if it was refused, after twice the pause
// before. It reports whether to log that.
func (r *reaper) postpone(batch []*orphan, err error) bool {
	const longest = 10 * time.Minute
	r.mu.Lock()
	defer r.mu.Unlock()
	now, third := time.Now(), r.g.third()
	for _, o := range batch {
		pause := third
		if !etcd.Transient(err) {
			if o.failed != nil {
				pause = max(third, min(2*o.pause, longest))
			}
			o.pause = pause
		}
		o.failed, o.due = err, now.Add(pause)
	}
	recent := now.Sub(r.warned) < third
	if !recent {
		r.warned = now
	}
	return !recent
}
