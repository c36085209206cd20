package queue

import (
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
)

// ErrTaken says that an entry's key is there and is not the entry's: somebody put it there by hand, or it is an old one that
// a restore has brought back.
var ErrTaken = fmt.Errorf("queue: the entry's key is taken: %w", etcd.ErrNotDone)

// An answer may be that of a second sending of the same request: by us after an attempt whose answer was lost, by copies of an
// attempt, or by a proxy that we know nothing of. So "the key is there" never says by itself that it is somebody else's. The
// key tells: it is e's if it is attached to e's lease, has e's value and was created after e was made. If anybody else put
// such a key it would serve as well, since nobody but e uses its name and it goes with the lease.
// Kv is nil where there is no key: it is not e's then.
func (e Entry) owns(kv *mvccpb.KeyValue, value string) bool {
	return kv != nil && kv.Lease == int64(e.Lease) && kv.CreateRevision > e.After && Text(kv) == value
}

// Enter puts e into its queue, with value for people to read, and tells what is ahead of it. It is one attempt.
// Repeating it with the same value is safe: it enters once. If a key of that name is there and is not e's, that is ErrTaken.
//
// It is one small transaction where the queue is empty, as it is for most locks most of the time. Where it was not
// empty lately, the transaction is one that does not depend on it. In a queue that has other keys than contenders' it
// tells nothing of what is ahead: that is then read without holding up others.
func (q *Queue) Enter(a *etcd.Attempt, e Entry, value string) (Entry, Ahead, error) {
	if was := q.contended.of(e.rivals()); was.left == 0 && !was.mixed {
		ops := [...]clientv3.Op{e.put(value), e.fewNames()}
		resp, err := q.Line.Commit(a, etcd.Txn{Queue: e.Prefix, If: e.unrivalled(), Then: ops[:1:1], Else: ops[1:]})
		switch {
		case err != nil:
			q.contended.met(e.rivals(), true) // e may be there
			return e, Ahead{}, err
		case resp.Succeeded:
			e.Rev = resp.Revision
			return e, Ahead{None: true}, nil
		}
		q.contended.met(e.rivals(), true)
		q.mixedBy(e, resp.Responses[0].GetResponseRange().Kvs)
	}
	return q.join(a, e, value)
}

// join is Enter, whoever is in the queue.
func (q *Queue) join(a *etcd.Attempt, e Entry, value string) (Entry, Ahead, error) {
	txn := etcd.Txn{
		Queue: e.Prefix,
		If:    []clientv3.Cmp{e.absent()},
		Then:  []clientv3.Op{e.put(value)},
		Else:  []clientv3.Op{clientv3.OpGet(e.Key)},
	}
	mixed := q.contended.mixed(e.rivals())
	if !mixed {
		txn.Then = []clientv3.Op{e.newestTwo(), e.put(value)}
	}
	resp, err := q.Line.Commit(a, txn)
	switch {
	case err != nil:
		return e, Ahead{}, err
	case resp.Succeeded:
		e.Rev = resp.Revision
		if mixed {
			return e, Ahead{}, nil
		}
		ahead := q.aheadOf(e, resp.Responses[0].GetResponseRange())
		q.contended.met(e.rivals(), !ahead.None)
		return e, ahead, nil
	}
	kv := first(resp.Responses[0].GetResponseRange().Kvs)
	if !e.owns(kv, value) {
		return e, Ahead{}, ErrTaken
	}
	e.Rev = kv.CreateRevision
	return e, Ahead{}, nil
}

// HandOver lets e go and puts next, of the same queue, at its end, in one transaction: e's place is not next's. It
// reports whether that was done, now or by an earlier attempt, after which it is not known what is ahead of next. If not,
// nothing was: e's key was gone already, or a key of next's name was there. It is one attempt, and repeating it is safe.
func (q *Queue) HandOver(a *etcd.Attempt, e, next Entry, value string) (done bool, entered Entry, ahead Ahead, err error) {
	txn := etcd.Txn{
		Queue: e.Prefix,
		// Next's key must be absent also because a request that is late would overwrite it.
		If:   []clientv3.Cmp{e.Held(), next.absent()},
		Then: []clientv3.Op{e.delete(), next.put(value)},
		Else: []clientv3.Op{clientv3.OpGet(next.Key)},
	}
	mixed := q.contended.mixed(e.Prefix)
	if !mixed {
		txn.Then = []clientv3.Op{e.delete(), next.newestTwo(), next.put(value)}
	}
	resp, err := q.Line.Commit(a, txn)
	if err != nil {
		return false, next, Ahead{}, err
	}
	if !resp.Succeeded {
		if kv := first(resp.Responses[0].GetResponseRange().Kvs); next.owns(kv, value) {
			next.Rev = kv.CreateRevision
			return true, next, Ahead{}, nil
		}
		return false, next, Ahead{}, nil
	}
	next.Rev = resp.Revision
	if mixed {
		return true, next, Ahead{}, nil
	}
	return true, next, q.aheadOf(next, resp.Responses[1].GetResponseRange()), nil
}

// newestTwo reads the last two keys of those that exclude e, right before it enters.
func (e Entry) newestTwo() clientv3.Op {
	return clientv3.OpGet(e.Prefix, e.inRange(), byCreation(clientv3.SortDescend), clientv3.WithLimit(2), clientv3.WithKeysOnly())
}

// aheadOf is what e's newestTwo tells.
func (q *Queue) aheadOf(e Entry, newest *etcdserverpb.RangeResponse) Ahead {
	if q.mixedBy(e, newest.Kvs) {
		return Ahead{}
	}
	if len(newest.Kvs) == 0 {
		return Ahead{None: true}
	}
	return nearest(newest.Kvs, newest.Count) // of all in the range
}

// few is how many keys are read to see whether there are more, and what they are like.
const few = 3

// mixedBy reports whether there are others than contenders among keys of e's queue, and remembers it.
func (q *Queue) mixedBy(e Entry, kvs []*mvccpb.KeyValue) bool {
	mixed := slices.ContainsFunc(kvs, func(kv *mvccpb.KeyValue) bool { return !hasForm(e.Prefix, kv.Key) })
	if mixed {
		q.contended.mix(e.rivals(), true)
	}
	return mixed
}

// TryEnter enters only if nobody stands in the queue who excludes e; otherwise it returns the oldest of them and leaves nothing.
// So a reader does not pass a writer that waits: the writer's token would be the older one.
// It is one attempt, and repeating it with the same value is safe. If the error is not nil, e may have entered.
func (q *Queue) TryEnter(a *etcd.Attempt, e Entry, value string) (entered Entry, owner *mvccpb.KeyValue, err error) {
	if q.contended.mixed(e.rivals()) {
		return q.tryMixed(a, e, value)
	}
	resp, err := q.Line.Commit(a, etcd.Txn{
		Queue: e.Prefix,
		If:    e.unrivalled(),
		Then:  []clientv3.Op{e.put(value)},
		Else: []clientv3.Op{
			clientv3.OpGet(e.Key),
			clientv3.OpGet(e.Prefix, e.inRange(), clientv3.WithLimit(few)), // by name, which costs the server next to nothing
		},
	})
	if err != nil {
		return e, nil, err
	}
	if resp.Succeeded {
		e.Rev = resp.Revision
		return e, nil, nil
	}
	if kv := first(resp.Responses[0].GetResponseRange().Kvs); kv != nil {
		if !e.owns(kv, value) {
			return e, nil, ErrTaken
		}
		e.Rev = kv.CreateRevision
		return q.stayIfFirst(a, e, 0)
	}
	// The range may be empty here: in a shared commit the comparisons come before the others' operations.
	page := resp.Responses[1].GetResponseRange()
	if !q.mixedBy(e, page.Kvs) {
		if page.More {
			owner, err = q.oldest(a, e.outside())
		} else {
			owner = oldestOf(e.Prefix, page.Kvs)
		}
		if err != nil || owner != nil {
			return e, owner, err
		}
	}
	return q.tryMixed(a, e, value)
}

// oldestOf is the oldest contender of a whole queue, nil if there is none.
func oldestOf(prefix string, kvs []*mvccpb.KeyValue) (oldest *mvccpb.KeyValue) {
	for _, kv := range kvs {
		if Contends(prefix, kv) && (oldest == nil || kv.CreateRevision < oldest.CreateRevision) {
			oldest = kv
		}
	}
	return oldest
}

// tryMixed is TryEnter where other keys are in the queue, so that its not being empty says nothing.
func (q *Queue) tryMixed(a *etcd.Attempt, e Entry, value string) (Entry, *mvccpb.KeyValue, error) {
	owner, seen, err := q.ownerByName(a, e)
	if err != nil {
		return e, nil, err
	}
	if owner != nil { // though an earlier attempt may have entered
		resp, err := a.Get(e.Key)
		if err != nil || !e.owns(first(resp.Kvs), value) {
			return e, owner, err
		}
		e.Rev = first(resp.Kvs).CreateRevision
		return q.stayIfFirst(a, e, 0)
	}
	if e, _, err = q.join(a, e, value); err != nil {
		return e, nil, err
	}
	return q.stayIfFirst(a, e, seen)
}

// stayIfFirst is the end of TryEnter for an entry that is in the queue already: it stays there if it is the
// oldest contender, or else leaves. It is known that there was none at the revision seen.
func (q *Queue) stayIfFirst(a *etcd.Attempt, e Entry, seen int64) (Entry, *mvccpb.KeyValue, error) {
	r, err := q.call(a, e, seen, e.Rev)
	if err != nil {
		return e, nil, err
	}
	owner, err := q.pick(a, e.outside(), r)
	if err != nil || owner == nil {
		return e, nil, err
	}
	_, err = q.Leave(a, e)
	return e, q.withValue(a, owner), err
}

// Leave deletes e's key if it is still e's. It reports false if it was not: somebody else had deleted it, or an
// earlier attempt whose answer was lost. It is one attempt, and repeating it is safe.
func (q *Queue) Leave(a *etcd.Attempt, e Entry) (bool, error) {
	resp, err := q.Line.Commit(a, etcd.Txn{
		If:   []clientv3.Cmp{e.Held()},
		Then: []clientv3.Op{e.delete()},
	})
	return resp.Succeeded, err
}

// The client's constructors copy what they are given, some of it three times. The comparisons and operations of each
// acquisition and release are made without that: a comparison is completed in place, an operation is a copy of one without keys.
var (
	deleteKey = clientv3.OpDelete("")
	getFew    = clientv3.OpGet("", clientv3.WithLimit(few), clientv3.WithKeysOnly())
)

// absent compares true while the entry's key is not there. A comparison without a value is one with 0.
func (e Entry) absent() clientv3.Cmp { return clientv3.CreateRevision(e.Key) }

// unrivalled compares true while the entry's key is not there and nobody who excludes it.
func (e Entry) unrivalled() []clientv3.Cmp {
	if e.Shared {
		return []clientv3.Cmp{e.empty(), e.absent()} // its key lies behind the range
	}
	return []clientv3.Cmp{e.empty()}
}

// empty compares true while there is no key of a rival in the entry's queue, nor below it.
func (e Entry) empty() clientv3.Cmp {
	cmp, end := clientv3.CreateRevision(""), e.endKey()
	cmp.WithKeyBytes(end[:len(e.Prefix):len(e.Prefix)])
	cmp.GetCompare().RangeEnd = end
	return cmp
}

func (e Entry) put(value string) clientv3.Op {
	return clientv3.OpPut(e.Key, value, clientv3.WithLease(e.Lease))
}

func (e Entry) delete() clientv3.Op {
	op := deleteKey
	op.WithKeyBytes([]byte(e.Key))
	return op
}

func (e Entry) fewNames() clientv3.Op {
	op, end := getFew, e.endKey()
	op.WithKeyBytes(end[:len(e.Prefix):len(e.Prefix)])
	op.WithRangeBytes(end)
	return op
}
