package queue

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// ErrTaken says that an entry's key was there before it entered: somebody put it there by hand.
var ErrTaken = errors.New("queue: the entry's key is taken")

// Enter puts e into its queue, with value for people to read, and reports whether it is known to be the owner at
// once; if not, Await tells. It is one transaction and one attempt. Repeating it is safe: it enters once. Again says
// that an earlier attempt's answer was lost, so that a key which is there already is e's; otherwise that is
// ErrTaken.
func Enter(ctx context.Context, kv clientv3.KV, e Entry, value string, again bool) (entered Entry, owner bool, err error) {
	// No Else: the commit carries the whole request, and this is the one that every acquisition pays for.
	resp, err := kv.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(e.Key), "=", 0)).
		Then(clientv3.OpPut(e.Key, value, clientv3.WithLease(e.Lease)), clientv3.OpGet(e.Prefix, oldestKey...)).
		Commit()
	switch {
	case err != nil:
		return e, false, err
	case resp.Succeeded:
		e.Rev = resp.Header.Revision
		first := resp.Responses[1].GetResponseRange().Kvs[0]
		return e, string(first.Key) == e.Key, nil
	case !again:
		return e, false, ErrTaken
	}
	own, err := kv.Get(ctx, e.Key, clientv3.WithKeysOnly())
	if err != nil {
		return e, false, err
	}
	if len(own.Kvs) == 0 { // deleted by somebody else since
		return Enter(ctx, kv, e, value, again)
	}
	e.Rev = own.Kvs[0].CreateRevision
	return e, false, nil
}

// oldestKey is the oldest key below a prefix, contender or not.
var oldestKey = append(clientv3.WithFirstCreate(), clientv3.WithKeysOnly())

// TryEnter enters only if nobody stands in the queue; otherwise it returns the owner's key and leaves nothing.
// It is one attempt, and repeating it is safe; again is as for Enter. If the error is not nil, e may have entered.
func (q *Queue) TryEnter(ctx context.Context, e Entry, value string, again bool) (entered Entry, owner *mvccpb.KeyValue, err error) {
	resp, err := q.Client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(e.Prefix), "=", 0).WithPrefix()).
		Then(clientv3.OpPut(e.Key, value, clientv3.WithLease(e.Lease))).
		Else(clientv3.OpGet(e.Key, clientv3.WithKeysOnly()), clientv3.OpGet(e.Prefix, clientv3.WithFirstCreate()...)).
		Commit()
	if err != nil {
		return e, nil, err
	}
	if resp.Succeeded {
		e.Rev = resp.Header.Revision
		return e, nil, nil
	}
	if own := resp.Responses[0].GetResponseRange().Kvs; len(own) > 0 {
		if !again {
			return e, nil, ErrTaken
		}
		e.Rev = own[0].CreateRevision // put by an earlier attempt whose answer was lost
		return q.stayIfFirst(ctx, e)
	}
	if first := resp.Responses[1].GetResponseRange().Kvs[0]; contends(e.Prefix, first) {
		return e, first, nil
	}

	// The oldest key is no contender, so that the range is not empty says nothing: look past it.
	owner, err = q.oldest(ctx, e.Prefix, 0)
	if err != nil || owner != nil {
		return e, owner, err
	}
	if e, _, err = Enter(ctx, q.Client, e, value, again); err != nil {
		return e, nil, err
	}
	return q.stayIfFirst(ctx, e)
}

// stayIfFirst is the end of TryEnter for an entry that is in the queue already: it stays there if it is the
// oldest contender, or else leaves.
func (q *Queue) stayIfFirst(ctx context.Context, e Entry) (Entry, *mvccpb.KeyValue, error) {
	owner, err := q.oldest(ctx, e.Prefix, e.Rev-1)
	if err != nil || owner == nil {
		return e, nil, err
	}
	_, err = Leave(ctx, q.Client, e)
	return e, owner, err
}

// Leave deletes e's key if it is still e's. It reports false if it was not: somebody else had deleted it, or an
// earlier attempt whose answer was lost. It is one attempt, and repeating it is safe.
func Leave(ctx context.Context, kv clientv3.KV, e Entry) (bool, error) {
	resp, err := kv.Txn(ctx).If(e.Held()).Then(clientv3.OpDelete(e.Key)).Commit()
	if err != nil {
		return false, err
	}
	return resp.Succeeded, nil
}
