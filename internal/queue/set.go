package queue

import (
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
)

// MostInSet is the most entries of a set that enters in one transaction. A put and a read for each of 64 are the 128
// operations that etcd allows by default.
const MostInSet = 64

// EnterAll puts the entries of a set, each of another queue, into their queues in one transaction, sets their
// revisions, and returns for each what is ahead of it. All have one create revision, so each waits only for sets and
// entries with an older one: sets cannot deadlock, whatever their names are. It is one attempt, and repeating it with
// the same value is safe.
//
// The error is ErrTaken if a key of an entry's name exists and is not the entry's, and ErrGone if an earlier attempt
// has entered and one of its keys is gone. After either, the entries with a revision are in their queues.
func (q *Queue) EnterAll(a *etcd.Attempt, set []Entry, value string) ([]Ahead, error) {
	var txn etcd.Txn
	var looks []*pb.RequestOp
	var looked []int // the entries that looks are of
	for i, e := range set {
		txn.If = append(txn.If, e.absent())
		txn.Then = append(txn.Then, e.put(value))
		txn.Else = append(txn.Else, etcd.Get(e.Key))
		if !q.contended.mixed(e.rivals()) {
			looks, looked = append(looks, e.newestTwo()), append(looked, i)
		}
	}
	txn.Then = append(looks, txn.Then...)
	resp, err := q.Line.CommitAlone(a, txn)
	if err != nil {
		return nil, err
	}
	ahead := make([]Ahead, len(set))
	if !resp.Succeeded {
		_, err := recognise(set, resp.Responses, value)
		return ahead, err
	}
	entered(set, resp.Revision)
	for n, i := range looked {
		ahead[i] = q.aheadOf(set[i], resp.Responses[n].GetResponseRange())
	}
	return ahead, nil
}

func entered(set []Entry, rev int64) {
	for i := range set {
		set[i].Rev = rev
	}
}

// recognise reports, by reads of a set's keys, whether an earlier attempt has entered. The errors are those of
// EnterAll.
func recognise(set []Entry, reads []*pb.ResponseOp, value string) (have bool, err error) {
	missing := 0
	for i := range set {
		kv := first(reads[i].GetResponseRange().Kvs)
		set[i].Rev = 0 // an earlier attempt may have set it
		switch {
		case set[i].owns(kv, value):
			set[i].Rev = kv.CreateRevision
		case kv != nil:
			err = ErrTaken
		default:
			missing++
		}
	}
	if err == nil && 0 < missing && missing < len(set) {
		err = ErrGone
	}
	return missing == 0, err
}

// LeaveAll deletes those keys of a set that are still its own, in one transaction. It returns the indexes of the
// others: somebody else has deleted them, or an earlier attempt. It is one attempt, and repeating it is safe.
func (q *Queue) LeaveAll(a *etcd.Attempt, set []Entry) (gone []int, err error) {
	var txn etcd.Txn
	for _, e := range set {
		txn.Then = append(txn.Then, etcd.Nested(etcd.Txn{If: []clientv3.Cmp{e.Held()}, Then: []*pb.RequestOp{e.delete()}}))
	}
	resp, err := q.Line.CommitAlone(a, txn)
	for i, r := range resp.Responses {
		if !r.GetResponseTxn().GetSucceeded() {
			gone = append(gone, i)
		}
	}
	return gone, err
}

// TryEnterAll enters only if no queue has a contender that excludes the set's entry there. Otherwise it returns for
// each entry the oldest contender that excludes it, or nil, and leaves no key behind. It is one attempt, and
// repeating it with the same value is safe. If the error is not nil, the entries with a revision have entered.
func (q *Queue) TryEnterAll(a *etcd.Attempt, set []Entry, value string) (owners []*mvccpb.KeyValue, err error) {
	for {
		owners, again, err := q.tryEnterAll(a, set, value)
		if err != nil || !again {
			return owners, err
		}
	}
}

// tryEnterAll is one round of TryEnterAll. again says that a queue was found to have keys that are no contenders:
// another round then reads it by names.
func (q *Queue) tryEnterAll(a *etcd.Attempt, set []Entry, value string) (owners []*mvccpb.KeyValue, again bool, err error) {
	var txn etcd.Txn
	owners = make([]*mvccpb.KeyValue, len(set))
	seen := make([]int64, len(set)) // for queues that are not compared: the revision at which there was no contender
	var pages []*pb.RequestOp
	for i, e := range set {
		txn.If = append(txn.If, e.absent())
		if q.contended.mixed(e.rivals()) {
			if owners[i], seen[i], err = q.ownerByName(a, e); err != nil {
				return nil, false, err
			}
		} else {
			txn.If = append(txn.If, e.empty())
		}
		txn.Then = append(txn.Then, e.put(value))
		txn.Else = append(txn.Else, etcd.Get(e.Key))
		pages = append(pages, e.few())
	}
	if found(owners) { // an earlier attempt may have entered all the same
		txn.If, txn.Then = nil, txn.Else
		resp, err := q.Line.CommitAlone(a, txn)
		have := false
		if err == nil {
			have, err = recognise(set, resp.Responses, value)
		}
		if have && err == nil {
			owners, err = q.stayIfFirstInAll(a, set, nil)
			return owners, false, err
		}
		for i, e := range set { // the owners of the other queues, for the caller's error
			if err == nil && owners[i] == nil && seen[i] == 0 {
				owners[i], err = q.oldest(a, e.outside())
			}
		}
		return owners, false, err
	}
	txn.Else = append(txn.Else, pages...)
	resp, err := q.Line.CommitAlone(a, txn)
	if err != nil {
		return nil, false, err
	}
	if resp.Succeeded {
		entered(set, resp.Revision)
		owners, err = q.stayIfFirstInAll(a, set, seen)
		return owners, false, err
	}
	have, err := recognise(set, resp.Responses, value)
	switch {
	case err != nil:
		return nil, false, err
	case have:
		owners, err = q.stayIfFirstInAll(a, set, nil)
		return owners, false, err
	}
	for i, e := range set {
		page := resp.Responses[len(set)+i].GetResponseRange()
		switch {
		case seen[i] != 0 || len(page.Kvs) == 0:
			continue
		case q.mixedBy(e, page.Kvs):
			again = true
			continue
		case page.More:
			owners[i], err = q.oldest(a, e.outside())
		default:
			owners[i] = oldestOf(e.Prefix, page.Kvs)
		}
		if err != nil {
			return nil, false, err
		}
		if owners[i] == nil { // the keys are planted ones
			q.contended.mix(e.rivals(), true)
			again = true
		}
	}
	return owners, again, nil
}

func found(owners []*mvccpb.KeyValue) bool {
	return slices.ContainsFunc(owners, func(kv *mvccpb.KeyValue) bool { return kv != nil })
}

// stayIfFirstInAll ends TryEnterAll for a set that is in the queues: it stays if no older contender excludes any of
// its entries, otherwise it leaves. If seen is not nil, the set has just entered: seen has the revision at which
// there was no such contender, or 0 where the transaction has compared that there is none.
func (q *Queue) stayIfFirstInAll(a *etcd.Attempt, set []Entry, seen []int64) ([]*mvccpb.KeyValue, error) {
	owners := make([]*mvccpb.KeyValue, len(set))
	for i, e := range set {
		after := int64(0)
		if seen != nil {
			if after = seen[i]; after == 0 {
				continue
			}
		}
		r, err := q.call(a, e, after, e.Rev)
		if err != nil {
			return nil, err
		}
		if owners[i], err = q.pick(a, e.outside(), r); err != nil {
			return nil, err
		}
		if owners[i] != nil {
			owners[i] = q.withValue(a, owners[i])
		}
	}
	if !found(owners) {
		return owners, nil
	}
	_, err := q.LeaveAll(a, set)
	if err == nil {
		entered(set, 0)
	}
	return owners, err
}
