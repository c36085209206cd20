package lease

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/internal/retry"
)

// lateFor is how long a request whose answer was lost may still arrive at the server: a connection that is cut
// off delivers what it holds when it comes back, and Linux gives up on one after 924.6 s (ip-sysctl,
// tcp_retries2).
const lateFor = 20 * time.Minute

// sweepSize keeps a sweep within the server's default limit of 128 operations a transaction. Where the server's
// is lower, the reaper learns it.
const sweepSize = 40

// reaper deletes the keys of acquisitions that failed and of releases whose answer was lost, so that no attempt
// leaves an orphan in a queue: in the background, until the server has confirmed or the lease has gone.
//
// The key of an attempt whose outcome is unknown may still appear after it was found missing, when a request
// that was stuck in the network is delivered. Such a key is deleted again, soon and then with every third of the TTL, as
// long as that can happen; its name is not used again, so no other acquisition's key is ever deleted.
type reaper struct {
	g *grant

	mu      sync.Mutex // guards the fields below
	orphans map[string]*orphan
	size    int // of a sweep
	running bool
	wake    chan struct{} // of capacity 1: an orphan was added
	clean   chan struct{} // closed when every orphan is confirmed deleted; nil if nobody asks
}

type orphan struct {
	entry     queue.Entry
	late      bool      // the entering request may still arrive
	since     time.Time // when it was added
	confirmed bool      // by the server, since it was looked for last
	looks     int       // how often it was confirmed
	due       time.Time // when it is to be looked for again
}

// pauses are those after which a key that may appear late is looked for again, before it is every third of the TTL. On
// a sound network a request that was given up is overtaken by the deletion, if at all, by a few milliseconds.
var pauses = [...]time.Duration{100 * time.Millisecond, time.Second}

// pause is how long an orphan is left alone after it was confirmed.
func (r *reaper) pause(o *orphan) time.Duration {
	longest := r.g.ttl / 3
	if o.looks <= len(pauses) {
		return min(pauses[o.looks-1], longest)
	}
	return longest
}

// add takes over an entry to be deleted. Late says that an attempt to enter had an unknown outcome.
func (r *reaper) add(e queue.Entry, late bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.orphans == nil {
		r.orphans, r.wake, r.size = make(map[string]*orphan), make(chan struct{}, 1), sweepSize
	}
	r.orphans[e.Key] = &orphan{entry: e, late: late, since: time.Now()}
	if !r.running {
		r.running = r.g.s.spawn(r.run)
		return
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// flush waits until every orphan was confirmed deleted once, or ctx ends.
func (r *reaper) flush(ctx context.Context) error {
	r.mu.Lock()
	if !r.running || len(r.unconfirmed()) == 0 {
		r.mu.Unlock()
		return nil
	}
	if r.clean == nil {
		r.clean = make(chan struct{})
	}
	clean := r.clean
	r.mu.Unlock()
	select {
	case <-clean:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// run sweeps until nothing is left to delete.
func (r *reaper) run(ctx context.Context) {
	for {
		batch, more := r.next()
		if len(batch) > 0 {
			err := r.sweep(ctx, batch)
			if err == nil {
				r.confirm(batch)
				continue
			}
			if errors.Is(err, rpctypes.ErrTooManyOps) && len(batch) > 1 {
				r.shrink(len(batch) / 2)
				continue
			}
			if ctx.Err() == nil { // or else the lease is revoked next
				r.g.log.Warn("keys of failed attempts not deleted yet", "keys", len(batch), "err", err)
			}
		} else if !more {
			return
		}
		pause := time.NewTimer(r.untilDue())
		select {
		case <-pause.C:
			r.recheck()
		case <-r.wake:
		case <-ctx.Done():
		}
		pause.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// next returns the orphans to delete now, and whether to come back later for others. If there are none at all,
// or the server has dropped the lease with all its keys, the reaper has ended.
func (r *reaper) next() (batch []*orphan, again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.g.expired() {
		clear(r.orphans)
	}
	batch = r.unconfirmed()
	if len(batch) == 0 && r.clean != nil {
		close(r.clean)
		r.clean = nil
	}
	r.running = len(r.orphans) > 0
	return batch[:min(len(batch), r.size)], r.running
}

// unconfirmed lists the orphans that no sweep has confirmed yet. r.mu must be held.
func (r *reaper) unconfirmed() []*orphan {
	var list []*orphan
	for _, o := range r.orphans {
		if !o.confirmed {
			list = append(list, o)
		}
	}
	return list
}

// sweep deletes a batch in one transaction: each key only if it is the entry's, or, where it is not known
// whether that ever entered, only if it is attached to our lease.
func (r *reaper) sweep(ctx context.Context, batch []*orphan) error {
	ops := make([]clientv3.Op, 0, len(batch))
	for _, o := range batch {
		ours := o.entry.Held()
		if o.late {
			ours = clientv3.Compare(clientv3.LeaseValue(o.entry.Key), "=", o.entry.Lease)
		}
		ops = append(ops, clientv3.OpTxn([]clientv3.Cmp{ours}, []clientv3.Op{clientv3.OpDelete(o.entry.Key)}, nil))
	}
	ctx, cancel := context.WithTimeout(ctx, r.g.ttl)
	defer cancel()
	return retry.Do(ctx, r.g.s.client, r.g.queue.Attempt, func(ctx context.Context) error {
		_, err := retry.Txn(ctx, r.g.s.client, nil, ops, nil)
		return err
	})
}

// confirm takes a batch that the server has deleted off the list, or keeps an eye on it.
func (r *reaper) confirm(batch []*orphan) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range batch {
		o.confirmed = true
		o.looks++
		o.due = time.Now().Add(r.pause(o))
		if r.orphans[o.entry.Key] == o && (!o.late || time.Since(o.since) > lateFor) {
			delete(r.orphans, o.entry.Key)
			if !o.late {
				r.g.recycle(o.entry)
			}
		}
	}
}

// shrink makes sweeps smaller.
func (r *reaper) shrink(size int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.size = size
}

// untilDue is the time until an orphan is to be looked for again, or until a sweep that failed is to be repeated.
func (r *reaper) untilDue() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	until := r.g.ttl / 3
	for _, o := range r.orphans {
		if o.confirmed {
			until = min(until, time.Until(o.due))
		}
	}
	return until
}

// recheck has the orphans deleted again that are due, and those that soon will be: many share a sweep.
func (r *reaper) recheck() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.orphans {
		if o.confirmed && time.Until(o.due) <= r.pause(o)/4 {
			o.confirmed = false
		}
	}
}
