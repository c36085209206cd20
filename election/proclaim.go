package election

import (
	"cmp"
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/internal/scope"
)

// Proclaim changes the value that others see of the leader. Lease and token stay. It writes only while this
// leadership's key is there. Concurrent calls are carried out one after the other.
//
// A value has at most 4 KiB. On an error the value is unchanged, unless the error says that it may be the new one: an
// attempt was sent and its answer has not arrived, whatever a later attempt was answered. A late request never undoes a
// later Proclaim. The error wraps ctx's cause if ctx ended, and matches [lease.ErrLost], [ErrResigned] or
// [lease.ErrAskedToRelease] if the leadership has ended.
func (l *Leadership) Proclaim(ctx context.Context, value string) error {
	if err := checkValue("value", value, 0); err != nil {
		return err
	}
	if err := l.proclaim(ctx, value); err != nil {
		return fmt.Errorf("election: proclaim in %q: %w", l.name, err)
	}
	return nil
}

func (l *Leadership) proclaim(ctx context.Context, value string) error {
	select {
	case l.writing <- struct{}{}:
		defer func() { <-l.writing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := l.Err(); err != nil {
		return err
	}
	ctx, cancel := scope.Join(ctx, l.ctx)
	defer cancel()
	var found error
	late, err := l.hold.While(ctx, func(a *etcd.Attempt) (err error) {
		found, err = l.write(ctx, a, value)
		return cmp.Or(err, found)
	})
	if late && err != nil && found == nil {
		err = fmt.Errorf("%w; the value may be the new one", err)
	}
	return err
}

// write puts a value into the leader's key, on condition that the key was not modified since l.written: so a late
// request cannot undo a later one. Found is why the leadership has ended, if the key shows that: no attempt can write the
// value any more.
func (l *Leadership) write(ctx context.Context, a *etcd.Attempt, value string) (found, err error) {
	for e := l.hold.Entry; ; {
		resp, err := l.hold.Queue.Line.Commit(a, etcd.Txn{
			If:   []clientv3.Cmp{e.Held(), clientv3.Compare(clientv3.ModRevision(e.Key), "=", l.written)},
			Then: []*pb.RequestOp{etcd.Put(e.Key, value, e.Lease)},
			Else: []*pb.RequestOp{etcd.Get(e.Key)},
		})
		switch {
		case err != nil:
			return nil, err
		case resp.Succeeded:
			l.written = resp.Revision
			l.as.rev.Store(l.written) // nobody has asked by this write
			return nil, nil
		}
		kv := first(resp.Responses[0].GetResponseRange().Kvs)
		switch {
		case kv == nil || kv.CreateRevision != e.Rev:
			return l.ended(ctx, queue.Deleted), nil
		case clientv3.LeaseID(kv.Lease) != e.Lease:
			return l.ended(ctx, queue.Overwritten), nil
		case queue.Asked(kv):
			if found := l.ended(ctx, queue.Unwanted); queue.Text(kv) != value {
				return found, nil
			}
		}
		// The key was written on the same lease: by a candidate that asks this leader to hand over, by another handle
		// of this candidate, or by an attempt whose answer was lost.
		l.written = kv.ModRevision
		l.as.touched(l.written) // the watch may show the next write only
		if queue.Text(kv) == value {
			return nil, nil
		}
	}
}

// ended reports what was found of the leader's key, and returns why the leadership has ended.
func (l *Leadership) ended(ctx context.Context, end queue.End) error {
	l.hold.Ended(ctx, end)
	return l.Err()
}
