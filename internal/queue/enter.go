package queue

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/commit"
)

// ErrTaken says that an entry's key was there before it entered: somebody put it there by hand.
var ErrTaken = errors.New("queue: the entry's key is taken")

// Enter puts e into its queue, with value for people to read, and tells what is ahead of it. It is one attempt.
// Repeating it is safe: it enters once. Again says that an earlier attempt's answer was lost, so that a key which is
// there already is e's; otherwise that is ErrTaken.
//
// It is one small transaction where the queue is empty, as it is for most locks most of the time. Where it was not
// empty lately, the transaction is one that does not depend on it.
func (q *Queue) Enter(ctx context.Context, e Entry, value string, again bool) (Entry, Ahead, error) {
	if !again && !q.crowds.expected(e.Prefix) {
		resp, err := q.Line.Commit(ctx, commit.Txn{
			Queue: e.Prefix,
			If:    []clientv3.Cmp{e.empty()},
			Then:  []clientv3.Op{e.put(value)},
		})
		if err != nil || resp.Succeeded {
			e.Rev = resp.Revision
			return e, Ahead{None: err == nil}, err
		}
	}
	txn := commit.Txn{
		Queue: e.Prefix,
		If:    []clientv3.Cmp{e.absent()},
		Then:  []clientv3.Op{e.put(value), clientv3.OpGet(e.Prefix, newestTwo...)},
	}
	if again {
		txn.Else = []clientv3.Op{clientv3.OpGet(e.Key, clientv3.WithKeysOnly())}
	}
	resp, err := q.Line.Commit(ctx, txn)
	switch {
	case err != nil:
		return e, Ahead{}, err
	case resp.Succeeded:
		e.Rev = resp.Revision
		ahead := aheadOf(e, resp.Responses[1].GetResponseRange().Kvs)
		q.crowds.met(e.Prefix, !ahead.None)
		return e, ahead, nil
	case !again:
		return e, Ahead{}, ErrTaken
	}
	own := resp.Responses[0].GetResponseRange().Kvs
	if len(own) == 0 { // deleted by another of the same commit, whose comparisons come before everybody's operations
		return q.Enter(ctx, e, value, again)
	}
	e.Rev = own[0].CreateRevision
	return e, Ahead{}, nil
}

// HandOver lets e go and puts next, of the same queue, at its end, in one transaction: e's place is not next's. It
// reports whether that was done; if not, nothing was: e's key was gone already, or next's was there. It is one
// attempt. Repeating it is safe, but where an answer was lost, "not done" may mean that it was done before.
func (q *Queue) HandOver(ctx context.Context, e, next Entry, value string) (done bool, entered Entry, ahead Ahead, err error) {
	return q.replace(ctx, e, next, value)
}

// replace is HandOver under further conditions.
func (q *Queue) replace(ctx context.Context, e, next Entry, value string, also ...clientv3.Cmp) (done bool, entered Entry, ahead Ahead, err error) {
	resp, err := q.Line.Commit(ctx, commit.Txn{
		Queue: e.Prefix,
		// Next's key must be absent also because a request that is late would overwrite it.
		If:   append(also, e.Held(), next.absent()),
		Then: []clientv3.Op{clientv3.OpDelete(e.Key), next.put(value), clientv3.OpGet(e.Prefix, newestTwo...)},
	})
	if err != nil || !resp.Succeeded {
		return false, next, Ahead{}, err
	}
	next.Rev = resp.Revision
	return true, next, aheadOf(next, resp.Responses[2].GetResponseRange().Kvs), nil
}

// newestTwo are the last two keys of a queue: right after an entry has entered, itself and the one before it.
var newestTwo = []clientv3.OpOption{
	clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend),
	clientv3.WithLimit(2), clientv3.WithKeysOnly(),
}

// aheadOf reads what is before e in the newest two keys of its queue.
func aheadOf(e Entry, newest []*mvccpb.KeyValue) Ahead {
	for _, kv := range newest {
		if string(kv.Key) != e.Key {
			return Ahead{Key: string(kv.Key), Rev: kv.CreateRevision}
		}
	}
	return Ahead{None: true}
}

// TryEnter enters only if nobody stands in the queue; otherwise it returns the owner's key and leaves nothing.
// It is one attempt, and repeating it is safe; again is as for Enter. If the error is not nil, e may have entered.
func (q *Queue) TryEnter(ctx context.Context, e Entry, value string, again bool) (entered Entry, owner *mvccpb.KeyValue, err error) {
	resp, err := q.Line.Commit(ctx, commit.Txn{
		Queue: e.Prefix,
		If:    []clientv3.Cmp{e.empty()},
		Then:  []clientv3.Op{e.put(value)},
		Else: []clientv3.Op{
			clientv3.OpGet(e.Key, clientv3.WithKeysOnly()),
			clientv3.OpGet(e.Prefix, clientv3.WithFirstCreate()...),
		},
	})
	if err != nil {
		return e, nil, err
	}
	if resp.Succeeded {
		e.Rev = resp.Revision
		return e, nil, nil
	}
	if own := resp.Responses[0].GetResponseRange().Kvs; len(own) > 0 {
		if !again {
			return e, nil, ErrTaken
		}
		e.Rev = own[0].CreateRevision // put by an earlier attempt whose answer was lost
		return q.stayIfFirst(ctx, e)
	}
	// The range may be empty here: in a shared commit the comparisons come before the others' operations.
	if owner := first(resp.Responses[1].GetResponseRange().Kvs); owner != nil && Contends(e.Prefix, owner) {
		return e, owner, nil
	}

	// The oldest key is no contender, so that the range is not empty says nothing: look past it.
	owner, err = q.Owner(ctx, e.Prefix)
	if err != nil || owner != nil {
		return e, owner, err
	}
	if e, _, err = q.Enter(ctx, e, value, again); err != nil {
		return e, nil, err
	}
	return q.stayIfFirst(ctx, e)
}

// stayIfFirst is the end of TryEnter for an entry that is in the queue already: it stays there if it is the
// oldest contender, or else leaves.
func (q *Queue) stayIfFirst(ctx context.Context, e Entry) (Entry, *mvccpb.KeyValue, error) {
	owner, err := q.scan(ctx, e.Prefix, clientv3.SortAscend, e.Rev-1)
	if err != nil || owner == nil {
		return e, nil, err
	}
	_, err = q.Leave(ctx, e)
	return e, owner, err
}

// Leave deletes e's key if it is still e's. It reports false if it was not: somebody else had deleted it, or an
// earlier attempt whose answer was lost. It is one attempt, and repeating it is safe.
func (q *Queue) Leave(ctx context.Context, e Entry) (bool, error) {
	resp, err := q.Line.Commit(ctx, commit.Txn{
		If:   []clientv3.Cmp{e.Held()},
		Then: []clientv3.Op{clientv3.OpDelete(e.Key)},
	})
	return resp.Succeeded, err
}

// absent compares true while the entry's key is not there. A comparison without a value is one with 0; clientv3.Compare
// would copy it once more.
func (e Entry) absent() clientv3.Cmp { return clientv3.CreateRevision(e.Key) }

// empty compares true while there is no key in the entry's queue, nor below it.
func (e Entry) empty() clientv3.Cmp { return clientv3.CreateRevision(e.Prefix).WithPrefix() }

func (e Entry) put(value string) clientv3.Op {
	return clientv3.OpPut(e.Key, value, clientv3.WithLease(e.Lease))
}
