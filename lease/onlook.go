package lease

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// Watch yields who holds the lock called name and who waits for it, as [Inspect] does but without the TTLs, and again
// after every change, in order: a contender comes or goes, or its text changes. The name is the full one.
//
// The first queue is no older than the call, and the last one yielded is the present one, as far as etcd can be
// reached; while it cannot be reached, nothing is yielded. Watch survives broken streams, compactions, and members that
// are lost, lag or fall silent. It then yields the changes in between one by one, or, if they were compacted, the
// present queue. A consumer that is more than 64 changes behind skips to the latest.
//
// When ctx ends, the iteration ends without an error. The consumer may break out of the loop at any time. Either way,
// everything that Watch started has stopped when the loop is left. An error that will not pass, such as an invalid name
// or a denied permission, is yielded once and ends the iteration.
//
// Watch costs one etcd watch of all keys that begin with the name and "/", including those of nested names, on a stream
// that all uses of Watch and of election.Observe with one client share. It needs read permission on these keys. The
// iterator may be used more than once.
func Watch(ctx context.Context, client *clientv3.Client, name string) iter.Seq2[Queue, error] {
	return func(yield func(Queue, error) bool) {
		err := checkInspected(client, name)
		if err == nil {
			err = onlook(ctx, client, name, func(q Queue) bool { return yield(q, nil) })
			if err == nil || ctx.Err() != nil {
				return
			}
			err = fmt.Errorf("lease: watch %q: %w", name, err)
		}
		yield(Queue{}, err)
	}
}

// onlook calls show with each queue until show returns false; the error is nil then.
func onlook(ctx context.Context, client *clientv3.Client, name string, show func(Queue) bool) error {
	o := &onlooker{name: name, look: etcd.Look{Prefix: name + "/"}, unseen: make(chan Queue, mostUnseen)}
	o.out = etcd.Of(client).LookOut(&o.look) // it starts what others share
	life, end := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end()
	defer o.out.Leave(&o.look)
	wg.Go(func() { o.run(life) })
	for {
		select {
		case q, more := <-o.unseen:
			if !more {
				return o.err
			}
			if !show(q) {
				return nil
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// mostUnseen is by how many changes a consumer may be behind.
const mostUnseen = 64

// onlooker is one use of Watch.
type onlooker struct {
	name string
	out  *etcd.Lookout
	look etcd.Look

	// Only the goroutine of run uses these.
	seen  map[string]sight // by key
	rev   int64            // the revision of seen; 0: nothing is known
	shown Queue            // the latest in unseen

	unseen chan Queue // closed when err is set
	err    error      // why run has ended before ctx
}

// run follows the queue until ctx ends or an error is final.
func (o *onlooker) run(ctx context.Context) {
	defer o.out.Leave(&o.look) // the consumer may take long to leave, and a refused probe ends the watches of all others
	var b etcd.Backoff
	for ctx.Err() == nil {
		began := time.Now()
		if err := o.follow(ctx); err != nil && ctx.Err() == nil {
			o.err = err
			close(o.unseen)
			return
		}
		if time.Since(began) > time.Second {
			b.Reset()
		}
		_ = b.Sleep(ctx) // or ctx ends
	}
}

// follow opens one watch and applies its events until it breaks, which is no error. The read that goes with the next
// watch finds errors that are final.
func (o *onlooker) follow(ctx context.Context) error {
	known := o.rev != 0
	if !known {
		if err := o.out.Conn.Do(ctx, inspectAttempt, o.begin); err != nil {
			return err
		}
	}
	// The watch also reports the events since rev, though up to 100 ms late: etcd batches those of the past.
	watch, opened, cancel := o.out.Streams.Watch(ctx)
	defer cancel()
	events := o.out.Conn.Client.Watch(watch, o.look.Prefix, clientv3.WithPrefix(), clientv3.WithRev(o.rev+1))
	opened()
	if !known {
		o.show() // not before the watch is open: a consumer that breaks out now leaves nothing half opened
	} else {
		err := o.out.Conn.Do(watch, inspectAttempt, o.check)
		if err != nil && watch.Err() == nil {
			return err
		}
		if err != nil || o.rev == 0 {
			return nil // the watch has ended, or waits for a revision of another history
		}
	}
	for {
		resp, ok := etcd.Next(watch, events)
		if resp.CompactRevision != 0 || etcd.TooMuch(resp.Err()) { // compacted, or too large for this client
			o.rev = 0 // the changes since then are lost: read the queue anew
		}
		if !ok || resp.Err() != nil {
			return nil // the watch broke: run opens another
		}
		o.apply(resp.Events)
	}
}

// begin reads the queue as it is.
func (o *onlooker) begin(a *etcd.Attempt) (err error) {
	o.seen, o.rev, err = o.read(a)
	o.look.Seen.Store(o.rev)
	return err
}

// read reads the contenders, by key. opts may be a revision.
func (o *onlooker) read(a *etcd.Attempt, opts ...clientv3.OpOption) (map[string]sight, int64, error) {
	kvs, rev, err := queue.Standing(a, o.look.Prefix, true, false, opts...)
	if err != nil {
		return nil, 0, err
	}
	all := make(map[string]sight, len(kvs))
	for _, s := range seeAll(kvs) {
		all[s.Key] = s
	}
	return all, rev, nil
}

// check compares seen with what etcd has at the same revision: a restored cluster may have passed that revision by now,
// with other keys. If the revision has been compacted, the watch reports that. The count fails if the permission to
// read the whole range, which the watch needs, is gone.
func (o *onlooker) check(a *etcd.Attempt) error {
	_, err := a.Get(o.look.Prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return err
	}
	was, _, err := o.read(a, clientv3.WithRev(o.rev))
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		return nil
	case err != nil && !errors.Is(err, rpctypes.ErrFutureRev):
		return err
	case err != nil || !maps.Equal(was, o.seen):
		o.rev = 0
		o.look.Seen.Store(0)
	}
	return nil
}

// apply takes in the events of a watch. They are in order, and contain each revision as a whole.
func (o *onlooker) apply(events []*clientv3.Event) {
	for i, ev := range events {
		kv := ev.Kv
		if queue.InQueues(o.look.Prefix, kv.Key) {
			s, ok := see(kv)
			if ok && ev.Type == mvccpb.Event_PUT && queue.Contends(s.in, kv) {
				o.seen[s.Key] = s
			} else {
				delete(o.seen, string(kv.Key))
			}
		}
		if i+1 == len(events) || events[i+1].Kv.ModRevision != kv.ModRevision {
			o.rev = kv.ModRevision
			o.look.Seen.Store(o.rev)
			o.show()
		}
	}
}

// show passes the queue to the consumer unless that is the one shown last.
func (o *onlooker) show() {
	q := arrange(o.name, slices.Collect(maps.Values(o.seen)))
	if o.shown.Name != "" && slices.Equal(q.Holders, o.shown.Holders) && slices.Equal(q.Waiters, o.shown.Waiters) {
		return
	}
	o.shown = q
	// shown is compared with later queues, so the consumer gets a copy.
	q = Queue{q.Name, slices.Clone(q.Holders), slices.Clone(q.Waiters)}
	select {
	case o.unseen <- q:
		return
	default:
	}
	for len(o.unseen) > 0 { // the consumer is too far behind
		select {
		case <-o.unseen:
		default:
		}
	}
	o.unseen <- q
}
