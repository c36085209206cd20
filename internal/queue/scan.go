package queue

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// ErrGone says that an entry's own key is no longer in the queue.
var ErrGone = errors.New("queue: the entry's key is gone")

// ahead returns the nearest contender older than e, nil if there is none. The error is ErrGone if e's own key
// is not there any more: an entry that is gone has no turn to wait for.
func (q *Queue) ahead(ctx context.Context, e Entry) (*mvccpb.KeyValue, error) {
	// Not keys only: since 3.7 such a read does not tell the lease, by which a contender is known.
	older := append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(e.Rev-1))
	resp, err := q.Client.Txn(ctx).
		If(e.Held()).
		Then(clientv3.OpGet(e.Prefix, older...)).
		Commit()
	if err != nil {
		return nil, err
	}
	if !resp.Succeeded {
		return nil, ErrGone
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 || contends(e.Prefix, kvs[0]) {
		return first(kvs), nil
	}
	return q.scan(ctx, e.Prefix, clientv3.SortDescend, e.Rev-1)
}

// oldest returns the owner: the oldest contender no later than maxRev (0: of any age), or nil.
func (q *Queue) oldest(ctx context.Context, prefix string, maxRev int64) (*mvccpb.KeyValue, error) {
	return q.scan(ctx, prefix, clientv3.SortAscend, maxRev)
}

// scan returns the first contender in the order of create revisions, passing over keys that are none. It is
// needed only where such a key was met.
func (q *Queue) scan(ctx context.Context, prefix string, order clientv3.SortOrder, maxRev int64) (*mvccpb.KeyValue, error) {
	minRev := int64(0)
	for limit := int64(128); ; limit *= 2 {
		resp, err := q.Client.Get(ctx, prefix, clientv3.WithPrefix(),
			clientv3.WithSort(clientv3.SortByCreateRevision, order), clientv3.WithLimit(limit),
			clientv3.WithMinCreateRev(minRev), clientv3.WithMaxCreateRev(maxRev))
		if err != nil {
			return nil, err
		}
		for _, kv := range resp.Kvs {
			if contends(prefix, kv) {
				return kv, nil
			}
			if q.Report != nil && stray(prefix, kv) {
				q.Report(kv)
			}
		}
		if !resp.More {
			return nil, nil
		}
		// Keys that one transaction created share a revision, so the next page begins at the last one's again;
		// the doubled limit is room for them.
		last := resp.Kvs[len(resp.Kvs)-1].CreateRevision
		if order == clientv3.SortAscend {
			minRev = last
		} else {
			maxRev = last
		}
	}
}

func first(kvs []*mvccpb.KeyValue) *mvccpb.KeyValue {
	if len(kvs) == 0 {
		return nil
	}
	return kvs[0]
}
