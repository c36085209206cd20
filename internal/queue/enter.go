package queue

import (
	"fmt"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
)

// ErrTaken says that a key of the entry's name exists and is not the entry's: somebody put it by hand, or a restore
// of etcd brought an old one back.
var ErrTaken = fmt.Errorf("queue: the entry's key is taken: %w", etcd.ErrNotDone)

// owns reports whether kv, nil if there is no key, is e's. An answer may be to a second sending of the same request:
// by a retry after a lost answer, by a copy of an attempt, or by a proxy. So an existing key is not necessarily
// somebody else's. It is e's if it is attached to e's lease, has e's value and was created after e was made. If
// somebody else had put such a key it would serve as well, since nobody but e uses its name, and it ends with the
// lease.
func (e Entry) owns(kv *mvccpb.KeyValue, value string) bool {
	return kv != nil && kv.Lease == int64(e.Lease) && kv.CreateRevision > e.After && Text(kv) == value
}

// disown gives up e's present key before an attempt asks for its deletion: that request may arrive after the answer to a
// later attempt, which must not take the key for a hold.
func (e *Entry) disown() { e.After, e.Disowned = e.Rev, true }

// Enter puts e into its queue, with value for people to read, and returns e with its revision and what is ahead of
// it. It is one attempt, and repeating it with the same value is safe: e enters once. After an error e may have
// entered, see [etcd.Refused]. The error is ErrTaken if a key of that name exists and is not e's.
//
// If the queue is empty, as it mostly is, that is one small transaction. If the queue was recently not empty, the
// transaction does not depend on that. If the queue also has keys that are no contenders, Enter does not report what
// is ahead: Await then reads it in a way that holds up nobody else in etcd.
func (q *Queue) Enter(a *etcd.Attempt, e Entry, value string) (Entry, Ahead, error) {
	if was := q.contended.of(e.rivals()); was.left == 0 && !was.mixed {
		ops := [...]*pb.RequestOp{e.put(value), e.fewNames()}
		resp, err := q.Line.Commit(a, etcd.Txn{Queue: e.Prefix, If: e.unrivalled(), Then: ops[:1:1], Else: ops[1:]})
		switch {
		case err != nil:
			q.contended.met(e.rivals(), true) // e may have entered
			return e, Ahead{}, err
		case resp.Succeeded:
			e.Rev = resp.Revision
			return e, Ahead{None: true}, nil
		}
		q.contended.met(e.rivals(), true)
		q.mixedBy(e, resp.Responses[0].GetResponseRange().Kvs)
	}
	done, e, ahead, err := q.enter(a, nil, e, value)
	switch {
	case err == nil && !done:
		err = ErrTaken
	case ahead != Ahead{}:
		q.contended.met(e.rivals(), !ahead.None)
	}
	return e, ahead, err
}

// HandOver deletes e's key and puts next at the end of the same queue, in one transaction: next does not get e's
// place. It reports whether that was done, now or by an earlier attempt. After an earlier attempt what is ahead of
// next is unknown. If it reports false without an error, nothing was changed: e's key was already gone, or a key of
// next's name existed. It is one attempt, and repeating it is safe.
func (q *Queue) HandOver(a *etcd.Attempt, e, next Entry, value string) (done bool, entered Entry, ahead Ahead, err error) {
	return q.enter(a, &e, next, value)
}

// enter puts e into its queue unless its key exists: a delayed request would otherwise overwrite it. If leaving is not
// nil, enter also requires and deletes the key of that. The results are those of HandOver.
func (q *Queue) enter(a *etcd.Attempt, leaving *Entry, e Entry, value string) (done bool, entered Entry, ahead Ahead, err error) {
	cmps, ops := make([]clientv3.Cmp, 0, 2), make([]*pb.RequestOp, 0, 3)
	if leaving != nil {
		cmps, ops = append(cmps, leaving.Held()), append(ops, leaving.delete())
	}
	mixed := q.contended.mixed(e.rivals())
	if !mixed {
		ops = append(ops, e.newestTwo())
	}
	resp, err := q.Line.Commit(a, etcd.Txn{
		Queue: e.Prefix,
		If:    append(cmps, e.absent()),
		Then:  append(ops, e.put(value)),
		Else:  []*pb.RequestOp{etcd.Get(e.Key)},
	})
	if err != nil {
		return false, e, Ahead{}, err
	}
	if !resp.Succeeded {
		kv := first(resp.Responses[0].GetResponseRange().Kvs)
		if done = e.owns(kv, value); done {
			e.Rev = kv.CreateRevision
		}
		return done, e, Ahead{}, nil
	}
	e.Rev = resp.Revision
	if !mixed {
		ahead = q.aheadOf(e, resp.Responses[len(ops)-1].GetResponseRange())
	}
	return true, e, ahead, nil
}

// newestTwo reads the newest two of the keys that exclude e, just before e enters.
func (e Entry) newestTwo() *pb.RequestOp {
	r := e.all()
	r.Limit, r.KeysOnly, r.SortTarget, r.SortOrder = 2, true, pb.RangeRequest_CREATE, pb.RangeRequest_DESCEND
	return etcd.Range(r)
}

// aheadOf makes an Ahead of the answer to e's newestTwo.
func (q *Queue) aheadOf(e Entry, newest *pb.RangeResponse) Ahead {
	if q.mixedBy(e, newest.Kvs) {
		return Ahead{}
	}
	if len(newest.Kvs) == 0 {
		return Ahead{None: true}
	}
	return nearest(newest.Kvs, newest.Count) // Count is of all keys in the range
}

// few is the number of keys to read to see whether a queue is empty or mixed.
const few = 3

// mixedBy reports whether some of these keys of e's queue are no contenders, and remembers that.
func (q *Queue) mixedBy(e Entry, kvs []*mvccpb.KeyValue) bool {
	mixed := slices.ContainsFunc(kvs, func(kv *mvccpb.KeyValue) bool { return !hasForm(e.Prefix, kv.Key) })
	if mixed {
		q.contended.mix(e.rivals(), true)
	}
	return mixed
}

// oldestOf returns the oldest contender of all keys of a queue, nil if there is none.
func oldestOf(prefix string, kvs []*mvccpb.KeyValue) (oldest *mvccpb.KeyValue) {
	for _, kv := range kvs {
		if Contends(prefix, kv) && (oldest == nil || kv.CreateRevision < oldest.CreateRevision) {
			oldest = kv
		}
	}
	return oldest
}

// Leave deletes e's key if it is still e's. It reports false if it was not: somebody else had deleted it, or an
// earlier attempt whose answer was lost. It is one attempt, and repeating it is safe.
func (q *Queue) Leave(a *etcd.Attempt, e Entry) (bool, error) {
	resp, err := q.Line.Commit(a, etcd.Txn{
		If:   []clientv3.Cmp{e.Held()},
		Then: []*pb.RequestOp{e.delete()},
	})
	return resp.Succeeded, err
}

// absent compares true while the entry's key does not exist. A comparison without a value compares with 0.
func (e Entry) absent() clientv3.Cmp { return clientv3.CreateRevision(e.Key) }

// unrivalled compares true while neither the entry's key exists nor one that excludes it.
func (e Entry) unrivalled() []clientv3.Cmp {
	if e.Shared {
		return []clientv3.Cmp{e.empty(), e.absent()} // a reader's key is outside the range of empty
	}
	return []clientv3.Cmp{e.empty()}
}

// empty compares true while there is no key in the range of those that exclude the entry, of nested names included.
func (e Entry) empty() clientv3.Cmp {
	cmp, end := clientv3.CreateRevision(""), e.endKey()
	cmp.WithKeyBytes(end[:len(e.Prefix):len(e.Prefix)])
	cmp.GetCompare().RangeEnd = end
	return cmp
}

func (e Entry) put(value string) *pb.RequestOp { return etcd.Put(e.Key, value, e.Lease) }

func (e Entry) delete() *pb.RequestOp { return etcd.Delete(e.Key) }

// all reads the keys that exclude e.
func (e Entry) all() *pb.RangeRequest {
	end := e.endKey()
	return &pb.RangeRequest{Key: end[:len(e.Prefix):len(e.Prefix)], RangeEnd: end}
}

// few reads the first of them in order of names, which is cheap for the server.
func (e Entry) few() *pb.RequestOp {
	r := e.all()
	r.Limit = few
	return etcd.Range(r)
}

func (e Entry) fewNames() *pb.RequestOp {
	r := e.all()
	r.Limit, r.KeysOnly = few, true
	return etcd.Range(r)
}
