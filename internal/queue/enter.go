package queue

import (
	"errors"
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

// Enter puts the entries of a set, each of another queue, into their queues in one transaction, with value for people to
// read. It sets their revisions, and returns for each what is ahead of it. All have one create revision, so each waits
// only for sets and entries with an older one: sets cannot deadlock, whatever their names are. It is one attempt, and
// repeating it with the same value is safe: each enters once.
//
// After an error the entries may have entered, see [etcd.Refused]. The error is ErrTaken if a key of an entry's name
// exists and is not the entry's, and ErrGone if an earlier attempt has entered and one of its keys is gone. After either,
// the entries with a revision are in their queues.
//
// If the queue of a single entry is empty, as it mostly is, that is one small transaction. If the queue was recently not
// empty, the transaction does not depend on that. If a queue also has keys that are no contenders, Enter does not report
// what is ahead: Await then reads it in a way that holds up nobody else in etcd.
func (q *Queue) Enter(a *etcd.Attempt, set []Entry, value string) ([]Ahead, error) {
	if e := set[0]; len(set) == 1 {
		if was := q.contended.of(e.rivals()); was.left == 0 && !was.mixed {
			ops := [...]*pb.RequestOp{e.put(value), e.few(true)}
			resp, err := q.Line.Commit(a, etcd.Txn{Queue: e.Prefix, If: e.unrivalled(), Then: ops[:1:1], Else: ops[1:]})
			if err == nil && resp.Succeeded {
				set[0].Rev = resp.Revision
				return alone, nil
			}
			q.contended.met(e.rivals(), true) // e may have entered
			if err != nil {
				return nil, err
			}
			q.mixedBy(e, resp.Responses[0].GetResponseRange().Kvs)
		}
	}
	ahead, err := q.enter(a, nil, set, value)
	for i, one := range ahead {
		if one != (Ahead{}) {
			q.contended.met(set[i].rivals(), !one.None)
		}
	}
	return ahead, err
}

// alone is what is ahead of an entry in an empty queue. Nobody changes it.
var alone = []Ahead{{None: true}}

// HandOver deletes e's key and puts next at the end of the same queue, in one transaction: next does not get e's
// place. If that was done, now or by an earlier attempt, next has a revision. After an earlier attempt what is ahead of
// next is unknown. Without an error and without a revision nothing was changed: e's key was already gone, or a key of
// next's name existed. It is one attempt, and repeating it is safe.
func (q *Queue) HandOver(a *etcd.Attempt, e Entry, next *Entry, value string) (Ahead, error) {
	set := []Entry{*next}
	ahead, err := q.enter(a, &e, set, value)
	*next = set[0]
	if errors.Is(err, ErrTaken) {
		return Ahead{}, nil
	}
	if err != nil {
		return Ahead{}, err
	}
	return ahead[0], nil
}

// enter is Enter in a transaction that does not depend on whether the queues are empty. It enters only if no key of the
// set exists: a delayed request would otherwise overwrite one. If leaving is not nil, enter also requires and deletes the
// key of that.
func (q *Queue) enter(a *etcd.Attempt, leaving *Entry, set []Entry, value string) ([]Ahead, error) {
	n := len(set)
	txn := etcd.Txn{If: make([]clientv3.Cmp, 0, n+1), Then: make([]*pb.RequestOp, 0, 2*n+1), Else: make([]*pb.RequestOp, 0, n)}
	if leaving != nil {
		txn.If, txn.Then = append(txn.If, leaving.Held()), append(txn.Then, leaving.delete())
	}
	looks, looked := len(txn.Then), make([]int, 0, n) // the entries whose queues are read
	for i, e := range set {
		txn.If, txn.Else = append(txn.If, e.absent()), append(txn.Else, etcd.Get(e.Key))
		if !q.contended.mixed(e.rivals()) {
			txn.Then, looked = append(txn.Then, e.newestTwo()), append(looked, i)
		}
	}
	for _, e := range set {
		txn.Then = append(txn.Then, e.put(value))
	}
	resp, err := q.commit(a, set, txn)
	if err != nil {
		return nil, err
	}
	ahead := make([]Ahead, n)
	if !resp.Succeeded {
		_, err := recognise(set, resp.Responses, value)
		return ahead, err
	}
	entered(set, resp.Revision)
	for at, i := range looked {
		switch newest := resp.Responses[looks+at].GetResponseRange(); {
		case q.mixedBy(set[i], newest.Kvs): // what is ahead stays unknown
		case len(newest.Kvs) == 0:
			ahead[i].None = true
		default:
			ahead[i] = nearest(newest.Kvs, newest.Count) // Count is of all keys in the range
		}
	}
	return ahead, nil
}

// MostInSet is the most entries of a set that enters in one transaction. A put and a read for each of 64 are the 128
// operations that etcd allows by default.
const MostInSet = 64

// commit carries out a transaction that enters a set. That of one entry may share a commit.
func (q *Queue) commit(a *etcd.Attempt, set []Entry, txn etcd.Txn) (etcd.Result, error) {
	if len(set) > 1 {
		return q.Line.CommitAlone(a, txn)
	}
	txn.Queue = set[0].Prefix
	return q.Line.Commit(a, txn)
}

func entered(set []Entry, rev int64) {
	for i := range set {
		set[i].Rev, set[i].Disowned = rev, false
	}
}

// recognise reports, by reads of a set's keys, whether an earlier attempt has entered. The errors are those of Enter.
func recognise(set []Entry, reads []*pb.ResponseOp, value string) (have bool, err error) {
	missing := 0
	for i := range set {
		var taken error
		if set[i], taken = set[i].recognised(reads[i], value); taken != nil {
			err = taken
		} else if set[i].Rev == 0 {
			missing++
		}
	}
	if err == nil && 0 < missing && missing < len(set) {
		err = ErrGone
	}
	return missing == 0, err
}

// newestTwo reads the newest two of the keys that exclude e, just before e enters.
func (e Entry) newestTwo() *pb.RequestOp {
	r := e.all()
	r.Limit, r.KeysOnly, r.SortTarget, r.SortOrder = 2, true, pb.RangeRequest_CREATE, pb.RangeRequest_DESCEND
	return etcd.Range(r)
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

// TryEnterAll enters only if no queue has a contender that excludes the set's entry there. Otherwise it returns for
// each entry the oldest contender that excludes it, or nil, and leaves no key behind. A reader that tries does not pass
// a waiting writer: the writer's token would be the older one. TryEnterAll is one attempt, and repeating it with the
// same value is safe. If the error is not nil, the entries with a revision have entered.
func (q *Queue) TryEnterAll(a *etcd.Attempt, set []Entry, value string) (owners []*mvccpb.KeyValue, err error) {
	byName := make([]bool, len(set))
	for {
		owners, again, err := q.tryEnterAll(a, set, value, byName)
		if err != nil || !again {
			return owners, err
		}
	}
}

// tryEnterAll is one round of TryEnterAll. It reads queues with keys that are no contenders by names, since whether such
// a queue is empty says nothing. again says that it has found more of them, which it adds to byName.
func (q *Queue) tryEnterAll(a *etcd.Attempt, set []Entry, value string, byName []bool) (owners []*mvccpb.KeyValue, again bool, err error) {
	var txn etcd.Txn
	var pages []*pb.RequestOp
	owners, seen := make([]*mvccpb.KeyValue, len(set)), make([]int64, len(set))
	for i, e := range set {
		cmps := e.unrivalled()
		byName[i] = byName[i] || q.contended.mixed(e.rivals())
		if byName[i] {
			if owners[i], seen[i], err = q.ownerByName(a, e); err != nil {
				return nil, false, err
			}
			cmps = []clientv3.Cmp{e.absent()}
		}
		txn.If = append(txn.If, cmps...)
		txn.Then = append(txn.Then, e.put(value))
		txn.Else = append(txn.Else, etcd.Get(e.Key))
		pages = append(pages, e.few(false))
	}
	txn.Else = append(txn.Else, pages...)
	if found(owners) { // an earlier attempt may have entered all the same
		txn.If, txn.Then = nil, txn.Else
	}
	resp, err := q.commit(a, set, txn)
	if err != nil {
		return nil, false, err
	}
	if resp.Succeeded && !found(owners) {
		entered(set, resp.Revision)
		for i := range seen {
			if !byName[i] {
				seen[i] = resp.Revision // the queue was empty then
			}
		}
		owners, err = q.stayIfFirstInAll(a, set, seen)
		return owners, false, err
	}
	have, err := recognise(set, resp.Responses, value)
	switch {
	case err != nil:
		return nil, false, err
	case have:
		owners, err = q.stayIfFirstInAll(a, set, make([]int64, len(set)))
		return owners, false, err
	}
	for i, e := range set {
		page := resp.Responses[len(set)+i].GetResponseRange()
		switch {
		case byName[i] || len(page.Kvs) == 0:
			continue
		case q.mixedBy(e, page.Kvs):
		case page.More:
			owners[i], err = q.oldest(a, e.outside())
		default:
			owners[i] = oldestOf(e.Prefix, page.Kvs)
		}
		if err != nil {
			return nil, false, err
		}
		if owners[i] == nil {
			byName[i], again = true, true
		}
	}
	if !again && !found(owners) {
		// The page of a single entry may be empty: in a shared commit etcd compares before it carries out the others'
		// operations.
		byName[0], again = true, true
	}
	return owners, again, nil
}

func found(owners []*mvccpb.KeyValue) bool {
	return slices.ContainsFunc(owners, func(kv *mvccpb.KeyValue) bool { return kv != nil })
}

// stayIfFirstInAll ends TryEnterAll for a set that is in the queues: it stays if no older contender excludes any of
// its entries, otherwise it leaves. For each queue seen has a revision at which there was none, or 0.
func (q *Queue) stayIfFirstInAll(a *etcd.Attempt, set []Entry, seen []int64) ([]*mvccpb.KeyValue, error) {
	owners := make([]*mvccpb.KeyValue, len(set))
	for i, e := range set {
		if seen[i] == e.Rev { // nobody is older
			continue
		}
		r, err := q.call(a, e, seen[i], e.Rev)
		if err != nil {
			return nil, err
		}
		if owners[i], err = q.pick(a, e.outside(), r); err != nil {
			return nil, err
		}
		if owners[i] != nil {
			owners[i] = WithValue(a, owners[i])
		}
	}
	if !found(owners) {
		return owners, nil
	}
	for i := range set {
		set[i].disown()
	}
	_, err := q.Leave(a, set)
	if err == nil {
		entered(set, 0)
	}
	return owners, err
}

// Leave deletes those keys of a set that are still its own, in one transaction. It returns the indexes of the others:
// somebody else has deleted them, or an earlier attempt. It is one attempt, and repeating it is safe.
func (q *Queue) Leave(a *etcd.Attempt, set []Entry) (gone []int, err error) {
	if len(set) == 1 { // may share a commit
		resp, err := q.Line.Commit(a, set[0].leave())
		if err == nil && !resp.Succeeded {
			gone = []int{0}
		}
		return gone, err
	}
	var txn etcd.Txn
	for _, e := range set {
		txn.Then = append(txn.Then, etcd.Nested(e.leave()))
	}
	resp, err := q.Line.CommitAlone(a, txn)
	for i, r := range resp.Responses {
		if !r.GetResponseTxn().GetSucceeded() {
			gone = append(gone, i)
		}
	}
	return gone, err
}

func (e Entry) leave() etcd.Txn {
	return etcd.Txn{If: []clientv3.Cmp{e.Held()}, Then: []*pb.RequestOp{e.delete()}}
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

// few reads the first of them in order of names, which is cheap for the server; with names alone neither their values
// nor their leases.
func (e Entry) few(namesAlone bool) *pb.RequestOp {
	r := e.all()
	r.Limit, r.KeysOnly = few, namesAlone
	return etcd.Range(r)
}
