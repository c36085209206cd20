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
		pages = append(pages, e.few())
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
