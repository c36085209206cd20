package election

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/internal/retry"
)

// readAttempt bounds the first attempt of a read, see retry.Do.
const readAttempt = 2 * time.Second

// ErrNoLeader says that nobody leads.
var ErrNoLeader = errors.New("election: no leader")

// Leader is somebody who leads, or stands for it, as others see it. The zero Leader is no leader. Leaders compare
// with ==.
type Leader struct {
	// Value is what the leader has proclaimed.
	Value string
	// Token is the leader's fencing token in era 0: the create revision of Key. A session's era is not in etcd, so a
	// leader whose session has one holds the token of that era and this revision.
	Token fence.Token
	// Key is the leader's key in etcd.
	Key string
	// Lease is the lease that Key is attached to.
	Lease clientv3.LeaseID
}

// None reports whether l is no leader.
func (l Leader) None() bool { return l.Token == 0 }

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
	l, _, err := present(ctx, client, name+"/")
	if err == nil && l.None() {
		err = ErrNoLeader
	}
	if err != nil {
		return Leader{}, fmt.Errorf("election: current leader of %q: %w", name, err)
	}
	return l, nil
}

// Candidates returns the leader of name and behind it, in their order, those who wait to lead. It is empty if nobody
// leads. It is one linearizable read of everything below the name, at one revision, with the errors of [Current].
func Candidates(ctx context.Context, client *clientv3.Client, name string) ([]Leader, error) {
	if err := checkTarget(client, name); err != nil {
		return nil, err
	}
	var all []Leader
	err := retry.Do(ctx, client, readAttempt, func(ctx context.Context) (err error) {
		all, _, err = contenders(ctx, client, name+"/")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("election: candidates of %q: %w", name, err)
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

// present is the leader, or none, and the revision at which that is so, which is no older than the call.
func present(ctx context.Context, client *clientv3.Client, prefix string) (l Leader, rev int64, err error) {
	err = retry.Do(ctx, client, readAttempt, func(ctx context.Context) (err error) {
		l, rev, err = oldest(ctx, client, prefix)
		return err
	})
	return l, rev, err
}

// oldest is present, in one attempt. It reads one key, unless the oldest one is no contender.
func oldest(ctx context.Context, client *clientv3.Client, prefix string) (Leader, int64, error) {
	resp, err := retry.Get(ctx, client, prefix, clientv3.WithFirstCreate()...)
	if err != nil {
		return Leader{}, 0, err
	}
	if len(resp.Kvs) == 0 {
		return Leader{}, resp.Header.Revision, nil
	}
	if kv := resp.Kvs[0]; queue.Contends(prefix, kv) {
		return newLeader(kv), resp.Header.Revision, nil
	}
	all, rev, err := contenders(ctx, client, prefix)
	if err != nil || len(all) == 0 {
		return Leader{}, rev, err
	}
	return all[0], rev, nil
}

// contenders reads all contenders, in their order, and the revision at which they stood. It is one attempt.
func contenders(ctx context.Context, client *clientv3.Client, prefix string) ([]Leader, int64, error) {
	resp, err := retry.Get(ctx, client, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, 0, err
	}
	all := []Leader{}
	for _, kv := range resp.Kvs {
		if queue.Contends(prefix, kv) {
			all = append(all, newLeader(kv))
		}
	}
	slices.SortFunc(all, Leader.before)
	return all, resp.Header.Revision, nil
}

func newLeader(kv *mvccpb.KeyValue) Leader {
	return Leader{
		Value: string(kv.Value),
		Token: fence.Token(kv.CreateRevision), // in era 0 they are the same
		Key:   string(kv.Key),
		Lease: clientv3.LeaseID(kv.Lease),
	}
}

// before orders contenders. Keys that one transaction created share a revision; no candidate enters like that.
func (l Leader) before(o Leader) int {
	return cmp.Or(cmp.Compare(l.Token, o.Token), cmp.Compare(l.Key, o.Key))
}
