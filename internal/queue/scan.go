package queue

import (
	"fmt"
	"slices"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
)

// ErrGone says that an entry's own key is no longer in the queue.
var ErrGone = fmt.Errorf("queue: the entry's key is gone: %w", etcd.ErrNotDone)

// Ahead is what is known of the contenders older than an entry. The zero value says that nothing is known.
type Ahead struct {
	None  bool   // there is none: the entry is the owner
	Key   string // of the nearest; "" if unknown. Whether it is attached to its lease is unknown until Await reads it
	Rev   int64  // the create revision of Key
	Owner bool   // Key is the owner's: when it goes, the entry is the owner

	before      contender // the contender before the nearest, if it is known
	beforeOwner bool      // that one is the owner
	written     bool      // Key was written after it was created, or that is unknown
	named       bool      // Key was found by name, and is attached to its lease
}

// contender is a key and its create revision.
type contender struct {
	key string
	rev int64
}

// first returns the contender to wait for first: of the nearest two the farther one. It ends a turn earlier, so the
// queue is read while the nearest is the owner, and the nearest's end is then the entry's turn with nothing more to
// read.
func (a Ahead) first() contender {
	if a.before.key != "" {
		return a.before
	}
	return contender{a.Key, a.Rev}
}

// look reads what is ahead of e; before is what was known. With check it also reads the key whose end is waited for,
// and ignores that key if it is not attached to its lease. The error is ErrGone if e's own key does not exist any
// more.
func (q *Queue) look(a *etcd.Attempt, e Entry, before Ahead, check bool) (Ahead, error) {
	if q.contended.mixed(e.rivals()) {
		return q.lookByName(a, e, before)
	}
	// Keys only: the server reads them from its index alone, however long the queue is. But since etcd 3.7 such a
	// read does not return the lease, by which a contender is recognised; hence check.
	nearestThree := clientv3.OpGet(e.Prefix, clientv3.WithRange(e.end()), clientv3.WithLimit(3), clientv3.WithKeysOnly(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend), clientv3.WithMaxCreateRev(e.Rev-1))
	reads := []clientv3.Op{nearestThree}
	watched := before.first().key
	if check {
		reads = append(reads, clientv3.OpGet(watched))
	}
	resp, err := a.Txn([]clientv3.Cmp{e.Held()}, reads, nil)
	if err != nil {
		return Ahead{}, err
	}
	if !resp.Succeeded {
		return Ahead{}, ErrGone
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 {
		return Ahead{None: true}, nil
	}
	ahead := nearest(kvs, int64(len(kvs)))
	if slices.ContainsFunc(kvs, func(kv *mvccpb.KeyValue) bool { return !hasForm(e.Prefix, kv.Key) }) ||
		check && ahead.first().key == watched && !Contends(e.Prefix, first(resp.Responses[1].GetResponseRange().Kvs)) {
		q.contended.mix(e.rivals(), true)
		return q.lookByName(a, e, Ahead{})
	}
	return ahead, nil
}

// nearest makes an Ahead of the nearest contenders, the nearest first. all is the number of all contenders ahead, or
// any number above two if there are more.
func nearest(kvs []*mvccpb.KeyValue, all int64) Ahead {
	kv := kvs[0]
	ahead := Ahead{Key: string(kv.Key), Rev: kv.CreateRevision, Owner: all == 1, written: kv.ModRevision != kv.CreateRevision}
	if len(kvs) > 1 {
		ahead.before, ahead.beforeOwner = contender{string(kvs[1].Key), kvs[1].CreateRevision}, all == 2
	}
	return ahead
}

// lookByName is look for a queue with keys that are no contenders.
func (q *Queue) lookByName(a *etcd.Attempt, e Entry, before Ahead) (Ahead, error) {
	if before.named { // while that key exists it is the nearest: contenders that enter are younger
		resp, err := a.Txn([]clientv3.Cmp{
			e.Held(), clientv3.Compare(clientv3.CreateRevision(before.Key), "=", before.Rev), isAttached(e.Prefix, before.Key),
		}, nil, nil)
		if err != nil || resp.Succeeded {
			return before, err
		}
	}
	r, err := q.call(a, e, 0, e.Rev)
	if err != nil {
		return Ahead{}, err
	}
	slices.Reverse(r.keys) // the nearest first
	kv, err := q.pick(a, e, r)
	if err != nil || kv == nil {
		return Ahead{None: err == nil}, err
	}
	// Not the owner while other keys have the form: they may be put back on their leases.
	owner := len(r.keys) == 1
	return Ahead{Key: string(kv.Key), Rev: kv.CreateRevision, Owner: owner, named: true, written: true}, nil
}

// Owner returns the oldest contender, nil if there is none. It is one attempt.
func (q *Queue) Owner(a *etcd.Attempt, prefix string) (*mvccpb.KeyValue, error) {
	return q.oldest(a, Entry{Prefix: prefix})
}

// oldest returns the oldest contender that excludes e, nil if there is none.
func (q *Queue) oldest(a *etcd.Attempt, e Entry) (*mvccpb.KeyValue, error) {
	if !q.contended.mixed(e.rivals()) {
		resp, err := a.Get(e.Prefix, append(clientv3.WithFirstCreate(), clientv3.WithRange(e.end()))...)
		if err != nil {
			return nil, err
		}
		if kv := first(resp.Kvs); kv == nil || Contends(e.Prefix, kv) {
			return kv, nil
		}
		q.contended.mix(e.rivals(), true)
	}
	owner, _, err := q.ownerByName(a, e)
	return owner, err
}

// ownerByName returns the oldest contender other than e that excludes e; nil if there was none at the revision seen.
func (q *Queue) ownerByName(a *etcd.Attempt, e Entry) (owner *mvccpb.KeyValue, seen int64, err error) {
	r, err := q.call(a, e, 0, 0)
	if err != nil {
		return nil, 0, err
	}
	r.keys = slices.DeleteFunc(r.keys, func(kv *mvccpb.KeyValue) bool { return string(kv.Key) == e.Key })
	owner, err = q.pick(a, e.outside(), r)
	if err != nil || owner == nil {
		return nil, r.rev, err
	}
	return WithValue(a, owner), r.rev, nil
}

// WithValue returns kv with its present value, or without one if that cannot be read: the value is only for people.
func WithValue(a *etcd.Attempt, kv *mvccpb.KeyValue) *mvccpb.KeyValue {
	resp, err := a.Get(string(kv.Key))
	if err != nil || len(resp.Kvs) == 0 || resp.Kvs[0].CreateRevision != kv.CreateRevision {
		return kv
	}
	return resp.Kvs[0]
}

// InQueue is the range of a queue, from its prefix on.
func InQueue(prefix string) clientv3.OpOption { return clientv3.WithRange(endOf(prefix)) }

func first(kvs []*mvccpb.KeyValue) *mvccpb.KeyValue {
	if len(kvs) == 0 {
		return nil
	}
	return kvs[0]
}

// contention remembers what queues were like recently. It only saves requests: an entry that wrongly takes its queue
// to be empty, or to have contenders alone, needs a second transaction.
type contention struct {
	mu    sync.Mutex           // guards the field below
	names map[string]contended // by Entry.rivals
}

// contended is a queue that was recently not empty, or that has keys which are no contenders.
type contended struct {
	left  int  // so many entries in a row must still find the queue empty before it counts as empty
	brisk bool // in the last wait each end came within shortWait
	mixed bool // it has keys that are no contenders, most often of nested names
}

const (
	contendedLasts = 8    // the first value of contended.left: expecting an empty queue wrongly costs a second request
	mostContended  = 1024 // the most queues that are remembered
)

func (c *contention) of(prefix string) contended {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.names[prefix]
}

// met records whether an entry has found somebody in the queue.
func (c *contention) met(prefix string, somebody bool) {
	c.change(prefix, func(q *contended) {
		if somebody {
			q.left = contendedLasts
		} else {
			q.left = max(0, q.left-1)
		}
	})
}

// mixed reports whether the queue is expected to have keys that are no contenders. Then etcd must not compare or sort
// all keys below its prefix: it commits nothing else meanwhile, and reads the values too.
func (c *contention) mixed(prefix string) bool { return c.of(prefix).mixed }

// quicken records that an entry has waited in the queue, and whether each end came within shortWait.
func (c *contention) quicken(prefix string, brisk bool) {
	c.change(prefix, func(q *contended) { q.left, q.brisk = contendedLasts, brisk })
}

func (c *contention) mix(prefix string, others bool) {
	c.change(prefix, func(q *contended) { q.mixed = others })
}

func (c *contention) change(prefix string, how func(*contended)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.names[prefix]
	how(&q)
	if q.left == 0 && !q.mixed {
		delete(c.names, prefix)
		return
	}
	if _, known := c.names[prefix]; !known && len(c.names) >= mostContended {
		clear(c.names)
	}
	if c.names == nil {
		c.names = make(map[string]contended)
	}
	c.names[prefix] = q
}
