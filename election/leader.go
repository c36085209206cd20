package election

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// readAttempt bounds the first attempt of a read; see etcd.Conn.Do.
const readAttempt = 2 * time.Second

// ErrNoLeader says that nobody leads.
var ErrNoLeader = errors.New("election: no leader")

// Leader is a leader, or a candidate, as others see it. The zero Leader means that nobody leads. Leaders compare with
// ==.
type Leader struct {
	// Value is the candidate's [Options].Value, or what the leader has proclaimed since.
	Value string
	// Revision is the create revision of Key, which is the leader's fencing token in era 0. etcd does not know a
	// session's era: with another era, the leader's token is made of that era and this revision.
	Revision int64
	// Key is the leader's key in etcd.
	Key string
	// Lease is the lease that Key is attached to.
	Lease clientv3.LeaseID
}

// None reports whether l is the zero Leader: nobody leads.
func (l Leader) None() bool { return l.Revision == 0 }

// Current returns the leader of name, or an error that matches [ErrNoLeader] if nobody leads. The name includes the
// session's prefix, if it has one.
//
// It is a linearizable read: if one leader leads from the call to the return, Current returns that leader. It retries
// transient failures until ctx ends; the error then wraps ctx's cause. If a retry cannot help, as when permission is
// denied, the error is etcd's. Current ignores keys below the name that are no contenders; see package lease.
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

// Candidates returns the leader of name, followed by the waiting candidates in their order. The list is empty if nobody
// leads. It is a linearizable read of the keys below the name, at one revision; except for [ErrNoLeader] its errors are
// those of [Current]. It does not read the values of nested names.
func Candidates(ctx context.Context, client *clientv3.Client, name string) ([]Leader, error) {
	if err := checkTarget(client, name); err != nil {
		return nil, err
	}
	var kvs []*mvccpb.KeyValue
	err := etcd.Of(client).Do(ctx, readAttempt, func(a *etcd.Attempt) (err error) {
		kvs, _, err = queue.Standing(a, name+"/", false, false)
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

// checkTarget refuses a bad client and a bad name before anything is sent.
func checkTarget(client *clientv3.Client, name string) error {
	if err := etcd.CheckClient(client); err != nil {
		return fmt.Errorf("election: %w", err)
	}
	if err := queue.CheckFullName(name); err != nil {
		return fmt.Errorf("election: name %w", err)
	}
	return nil
}

// present is leading with retries until ctx ends. The revision is no older than the call.
func present(ctx context.Context, client *clientv3.Client, prefix string, known Leader) (l Leader, rev int64, err error) {
	err = etcd.Of(client).Do(ctx, readAttempt, func(a *etcd.Attempt) (err error) {
		l, rev, err = leading(a, prefix, known)
		return err
	})
	return l, rev, err
}

// leading returns the leader, the oldest contender, or none, and the revision of the read, which opts may set. It is
// one attempt.
//
// Known is the leader so far. If an older key was written after known had been created, the write has put the key back
// on a lease, and its contender comes to stand before known. Then known stays the leader until its own end, since an
// observer that watches only known's key sees nothing else.
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

// oldest returns the oldest contender, nil if there is none, and the revision of the read, which opts may set. It reads
// one key, unless the oldest key is no contender. It is one attempt.
func oldest(a *etcd.Attempt, prefix string, opts ...clientv3.OpOption) (*mvccpb.KeyValue, int64, error) {
	firstCreated := append(clientv3.WithFirstCreate(), queue.InQueue(prefix))
	resp, err := a.Get(prefix, append(firstCreated, opts...)...)
	if err != nil {
		return nil, 0, err
	}
	if len(resp.Kvs) == 0 || queue.Contends(prefix, resp.Kvs[0]) {
		return first(resp.Kvs), resp.Header.Revision, nil
	}
	all, rev, err := queue.Standing(a, prefix, false, true, opts...)
	return first(all), rev, err
}

func first(kvs []*mvccpb.KeyValue) *mvccpb.KeyValue {
	if len(kvs) == 0 {
		return nil
	}
	return kvs[0]
}

// newLeader describes a contender to others; nil is nobody.
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
