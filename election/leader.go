package election

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// readAttempt bounds the first attempt of a read, see etcd.Conn.Do.
const readAttempt = 2 * time.Second

// ErrNoLeader says that nobody leads.
var ErrNoLeader = errors.New("election: no leader")

// Leader is a leader, or a candidate, as others see it. The zero Leader is no leader. Leaders compare
// with ==.
type Leader struct {
	// Value is what the leader has proclaimed.
	Value string
	// Revision is the leader's fencing token in era 0: the create revision of Key. A session's era is not in etcd, so a
	// leader whose session has one holds the token of that era and this revision.
	Revision int64
	// Key is the leader's key in etcd.
	Key string
	// Lease is the lease that Key is attached to.
	Lease clientv3.LeaseID
}

// None reports whether l is no leader.
func (l Leader) None() bool { return l.Revision == 0 }

// Current returns the leader of name, and an error that matches [ErrNoLeader] if there is none. The name is the full
// one, with the session's prefix if it has one.
//
// It is a linearizable read: whoever led when Current was called and leads when it returns is returned. What fails
// for the moment is tried again until ctx ends; the error wraps ctx's cause then, and etcd's error where trying again
// is of no use, as when permission is denied. Keys below the name that are no contenders are passed over; see package
// lease. Current is safe for concurrent use.
func Current(ctx context.Context, client *clientv3.Client, name string) (Leader, error) {
	if err := checkTarget(client, name); err != nil {
		return Leader{}, err
	}
	l, _, err := present(ctx, client, name+"/", Leader{})
	if err == nil && l.None() {
		err = ErrNoLeader
	}
	if err != nil {
		return Leader{}, fmt.Errorf("election: current leader of %q: %w", name, err)
	}
	return l, nil
}

// Candidates returns the leader of name and, behind it, the waiting candidates in their order. The list is empty if nobody
// leads. It is a linearizable read of the keys below the name, at one revision, with the errors of [Current]. The values
// of nested names are not read.
func Candidates(ctx context.Context, client *clientv3.Client, name string) ([]Leader, error) {
	if err := checkTarget(client, name); err != nil {
		return nil, err
	}
	var kvs []*mvccpb.KeyValue
	err := etcd.Of(client).Do(ctx, readAttempt, func(a *etcd.Attempt) (err error) {
		kvs, _, err = contenders(a, name+"/", false)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("election: candidates of %q: %w", name, err)
	}
	all := make([]Leader, len(kvs))
	for i, kv := range kvs {
		all[i] = newLeader(kv)
	}
	return all, nil
}

// checkTarget refuses what cannot be read.
func checkTarget(client *clientv3.Client, name string) error {
	if client == nil {
		return errors.New("election: client is nil, want an etcd client")
	}
	if err := queue.CheckName(name); err != nil {
		return fmt.Errorf("election: name %w", err)
	}
	return nil
}

// present is leading, tried again until ctx ends. The revision is no older than the call.
func present(ctx context.Context, client *clientv3.Client, prefix string, known Leader) (l Leader, rev int64, err error) {
	err = etcd.Of(client).Do(ctx, readAttempt, func(a *etcd.Attempt) (err error) {
		l, rev, err = leading(a, prefix, known)
		return err
	})
	return l, rev, err
}

// leading is the leader, or none, and the revision at which that is so or, with opts, was: the oldest contender. But where
// known has led and that one was written after known had been created, its lease has been changed, and known leads until its
// own end: so it is for those who watch the leader's key alone. It is one attempt.
func leading(a *etcd.Attempt, prefix string, known Leader, opts ...clientv3.OpOption) (Leader, int64, error) {
	kv, rev, err := oldest(a, prefix, opts...)
	if err != nil || kv == nil || kv.CreateRevision >= known.Revision || kv.ModRevision <= known.Revision {
		return newLeader(kv), rev, err
	}
	resp, err := a.Get(known.Key, opts...)
	if err != nil {
		return Leader{}, 0, err
	}
	if len(resp.Kvs) > 0 && queue.Contends(prefix, resp.Kvs[0]) && newLeader(resp.Kvs[0]).Revision == known.Revision {
		return newLeader(resp.Kvs[0]), resp.Header.Revision, nil
	}
	return newLeader(kv), rev, nil
}

// oldest is the oldest contender, nil if there is none, and the revision at which that is so or, with opts, was. It reads one
// key, unless the oldest one is no contender. It is one attempt.
func oldest(a *etcd.Attempt, prefix string, opts ...clientv3.OpOption) (*mvccpb.KeyValue, int64, error) {
	firstCreated := append(clientv3.WithFirstCreate(), queue.InQueue(prefix))
	resp, err := a.Get(prefix, append(firstCreated, opts...)...)
	if err != nil {
		return nil, 0, err
	}
	if len(resp.Kvs) == 0 || queue.Contends(prefix, resp.Kvs[0]) {
		return first(resp.Kvs), resp.Header.Revision, nil
	}
	all, rev, err := contenders(a, prefix, true, opts...)
	return first(all), rev, err
}

// contenders reads all contenders, or the first one, in their order, and the revision at which they stood. It is one attempt.
func contenders(a *etcd.Attempt, prefix string, one bool, opts ...clientv3.OpOption) ([]*mvccpb.KeyValue, int64, error) {
	for {
		keys, rev, err := queue.Children(a, prefix, opts...)
		var all []*mvccpb.KeyValue
		if err == nil {
			all, err = queue.Contenders(a, keys, one, append(opts, clientv3.WithRev(rev))...)
		}
		if errors.Is(err, rpctypes.ErrCompacted) && len(opts) == 0 {
			continue // between two requests: a newer revision serves as well
		}
		return all, rev, err
	}
}

func first(kvs []*mvccpb.KeyValue) *mvccpb.KeyValue {
	if len(kvs) == 0 {
		return nil
	}
	return kvs[0]
}

// newLeader is the contender as others see it, none if it is nil.
func newLeader(kv *mvccpb.KeyValue) Leader {
	if kv == nil {
		return Leader{}
	}
	return Leader{
		Value:    queue.Text(kv),
		Revision: kv.CreateRevision,
		Key:      string(kv.Key),
		Lease:    clientv3.LeaseID(kv.Lease),
	}
}

// before orders contenders. Keys that one transaction created share a revision; no candidate enters like that.
func (l Leader) before(o Leader) int {
	return cmp.Or(cmp.Compare(l.Revision, o.Revision), cmp.Compare(l.Key, o.Key))
}
