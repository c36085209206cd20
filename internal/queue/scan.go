package queue

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/retry"
)

// ErrGone says that an entry's own key is no longer in the queue.
var ErrGone = errors.New("queue: the entry's key is gone")

// Ahead is what is known of the contenders older than an entry. The zero value is nothing.
type Ahead struct {
	None  bool   // there is none: the entry is the owner
	Key   string // the nearest's, or that of a key that is no contender, until Await has looked; "" if unknown
	Rev   int64  // the create revision of Key
	Owner bool   // Key is the owner's: when it goes, the entry is the owner
}

// same reports whether the nearest is the one that it was. The revision does not tell alone: a key of a nested name,
// put in the same transaction, shares it.
func (a Ahead) same(b Ahead) bool { return !a.None && a.Key == b.Key && a.Rev == b.Rev }

// look reads what is ahead of e, where expected is most likely the nearest, "" if nothing is known. The error is
// ErrGone if e's own key is not there any more: an entry that is gone has no turn to wait for.
func (q *Queue) look(ctx context.Context, e Entry, expected string) (Ahead, error) {
	// Keys only, which the server reads from its index alone, however long the queue. But since 3.7 such a read does
	// not tell the lease, by which a contender is known.
	nearest := append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(e.Rev-1), clientv3.WithKeysOnly())
	reads := []clientv3.Op{clientv3.OpGet(e.Prefix, nearest...), clientv3.OpGet(e.Prefix, oldestKey...)}
	if expected != "" {
		reads = append(reads, clientv3.OpGet(expected))
	}
	resp, err := retry.Txn(ctx, q.Client, []clientv3.Cmp{e.Held()}, reads, nil)
	if err != nil {
		return Ahead{}, err
	}
	if !resp.Succeeded {
		return Ahead{}, ErrGone
	}
	kv := first(resp.Responses[0].GetResponseRange().Kvs)
	oldest := first(resp.Responses[1].GetResponseRange().Kvs)
	if kv == nil {
		return Ahead{None: true}, nil
	}
	if expected == string(kv.Key) {
		kv = first(resp.Responses[2].GetResponseRange().Kvs)
	}
	if !Contends(e.Prefix, kv) { // or its lease is not known
		if kv, err = q.scan(ctx, e.Prefix, clientv3.SortDescend, e.Rev-1); err != nil || kv == nil {
			return Ahead{None: err == nil}, err
		}
	}
	// Where a stray key is the oldest, the owner is not known by this.
	return Ahead{Key: string(kv.Key), Rev: kv.CreateRevision, Owner: string(kv.Key) == string(oldest.Key)}, nil
}

// oldestKey is the oldest key below a prefix, contender or not.
var oldestKey = append(clientv3.WithFirstCreate(), clientv3.WithKeysOnly())

// Owner returns the oldest contender, nil if there is none. It is one attempt.
func (q *Queue) Owner(ctx context.Context, prefix string) (*mvccpb.KeyValue, error) {
	return q.scan(ctx, prefix, clientv3.SortAscend, 0)
}

// scan returns the first contender in the order of create revisions, no later than maxRev (0: of any age), passing
// over keys that are none. In a queue without such keys it is one read of one key.
func (q *Queue) scan(ctx context.Context, prefix string, order clientv3.SortOrder, maxRev int64) (*mvccpb.KeyValue, error) {
	minRev := int64(0)
	for limit := int64(1); ; limit = max(128, 2*limit) {
		resp, err := retry.Get(ctx, q.Client, prefix, clientv3.WithPrefix(),
			clientv3.WithSort(clientv3.SortByCreateRevision, order), clientv3.WithLimit(limit),
			clientv3.WithMinCreateRev(minRev), clientv3.WithMaxCreateRev(maxRev))
		if err != nil {
			return nil, err
		}
		for _, kv := range resp.Kvs {
			if Contends(prefix, kv) {
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
