package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

var errChanged = errors.New("bare: somebody else has changed a key")

// bareSession sends transactions through gRPC, without the copies that etcd's client makes of them.
type bareSession struct {
	kv    pb.KVClient
	lease int64
	watch func(key string) clientv3.WatchChan // of deletions, from the session's start until it is closed
	close func(ctx context.Context) error
}

func openBare(ctx context.Context, client *clientv3.Client, ttl time.Duration) (*bareSession, error) {
	granted, err := client.Grant(ctx, int64(ttl/time.Second))
	if err != nil {
		return nil, err
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	return &bareSession{
		kv: pb.NewKVClient(client.ActiveConnection()), lease: int64(granted.ID),
		watch: func(key string) clientv3.WatchChan {
			return client.Watch(life, key, clientv3.WithFilterPut(), clientv3.WithRev(granted.Revision+1))
		},
		close: func(ctx context.Context) error {
			end()
			_, err := client.Revoke(ctx, granted.ID)
			return err
		},
	}, nil
}

// bareLock is a lock that nobody else wants: one transaction puts the key, another deletes it.
type bareLock struct {
	*bareSession
	key  []byte
	held int64 // create revision of the key; 0 if there is no key
}

// bareLocks are an implementation with bare locks.
func bareLocks() implementation { return bareLocksIn(new([]*bareLock)) }

// bareLocksIn are bare locks that are added to all.
func bareLocksIn(all *[]*bareLock) implementation {
	return implementation{open: func(ctx context.Context, client *clientv3.Client, ttl time.Duration) (session, error) {
		s, err := openBare(ctx, client, ttl)
		if err != nil {
			return session{}, err
		}
		return session{func(name string) locker {
			l := &bareLock{bareSession: s, key: []byte(name)}
			*all = append(*all, l)
			return locker{l.flip, l.flip}
		}, s.close}, nil
	}}
}

func (l *bareLock) flip(ctx context.Context) error { return flip(ctx, l) }

// flip puts the keys that are not there and deletes those that are, in one transaction.
func flip(ctx context.Context, locks ...*bareLock) error {
	req := locks[0].request()
	if len(locks) > 1 {
		req = &pb.TxnRequest{Success: make([]*pb.RequestOp, len(locks))}
		for i, l := range locks {
			req.Success[i] = &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: l.request()}}
		}
	}
	resp, err := locks[0].kv.Txn(ctx, req)
	if err != nil {
		return fmt.Errorf("bare: %w", err)
	}
	done := resp.Succeeded
	for i, l := range locks {
		if len(locks) > 1 {
			done = done && resp.Responses[i].GetResponseTxn().Succeeded
		}
		if l.held == 0 {
			l.held = resp.Header.Revision
		} else {
			l.held = 0
		}
	}
	if !done {
		return errChanged
	}
	return nil
}

func (l *bareLock) request() *pb.TxnRequest {
	op := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: l.key, Lease: l.lease}}}
	if l.held != 0 {
		op = &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: l.key}}}
	}
	return &pb.TxnRequest{
		Compare: []*pb.Compare{{Key: l.key, Target: pb.Compare_CREATE, TargetUnion: &pb.Compare_CreateRevision{CreateRevision: l.held}}},
		Success: []*pb.RequestOp{op},
	}
}

// ring is an implementation whose clients take turns in a fixed order. Each puts its key again after its turn, and has
// the next turn when its watch, which it keeps, reports that the key of the client before it was deleted. A turn takes
// two requests, two commits and one event. All sessions must be opened before the first turn.
func ring() implementation {
	members := new(int)
	return implementation{open: func(ctx context.Context, client *clientv3.Client, ttl time.Duration) (session, error) {
		s, err := openBare(ctx, client, ttl)
		if err != nil {
			return session{}, err
		}
		place := *members
		*members++
		return session{func(name string) locker {
			keyOf := func(place int) string { return fmt.Sprint(name, "/", place) }
			own := &bareLock{bareSession: s, key: []byte(keyOf(place))}
			var before clientv3.WatchChan // of the key before
			return locker{func(ctx context.Context) error {
				begins := before == nil && place == 0
				if before == nil {
					before = s.watch(keyOf((place + *members - 1) % *members))
				}
				if err := own.flip(ctx); err != nil || begins {
					return err
				}
				return awaitDeletion(ctx, before)
			}, own.flip}
		}, s.close}, nil
	}}
}

func awaitDeletion(ctx context.Context, events clientv3.WatchChan) error {
	select {
	case resp := <-events:
		if err := resp.Err(); err != nil {
			return fmt.Errorf("ring: %w", err)
		}
		if len(resp.Events) != 1 || resp.Events[0].Type != mvccpb.Event_DELETE {
			return fmt.Errorf("ring: got %v, want one deletion", resp.Events)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// groupOps is how many operations a group commit carries: nearly the server's default limit.
const groupOps = 120

// bareOwners returns n bare locks with different names.
func (t *trial) bareOwners(ctx context.Context, n int) (locks []*bareLock, err error) {
	t.impl = bareLocksIn(&locks)
	_, err = t.owners(ctx, n)
	return locks, err
}

// pairsInGroups measures pairs on n locks as group commits, one after the other, which go through the locks in a cycle.
// At the beginning and at the end some pairs are half done, so there are many for each lock, however slow the machine
// is.
func pairsInGroups(n int) measurement {
	return func(ctx context.Context, t *trial) ([]sample, error) {
		locks, err := t.bareOwners(ctx, n)
		if err != nil {
			return nil, err
		}
		began := map[*bareLock]time.Time{} // when the present pair of each lock began
		next, group := 0, make([]*bareLock, min(n, groupOps))
		return t.repeat(ctx, func(lasting time.Duration) (took []time.Duration, err error) {
			for end := time.Now().Add(lasting); len(took) < 8*n || time.Now().Before(end); {
				now := time.Now()
				for i := range group {
					group[i], next = locks[next], (next+1)%n
				}
				if err := flip(ctx, group...); err != nil {
					return nil, err
				}
				for _, l := range group {
					if l.held != 0 {
						began[l] = now
					} else {
						took = append(took, time.Since(began[l]))
					}
				}
			}
			return took, nil
		})
	}
}

// holdInGroups measures the acquisitions and releases of holdMany as group commits, one after the other.
func holdInGroups(ctx context.Context, t *trial) ([]sample, error) {
	locks, err := t.bareOwners(ctx, t.scale.holds)
	if err != nil {
		return nil, err
	}
	var samples []sample
	for _, line := range []string{"acquire", "release"} {
		s, err := t.measure(ctx, func() error {
			for group := range slices.Chunk(locks, groupOps) {
				if err := flip(ctx, group...); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		s.line, s.ops = line, len(locks)
		samples = append(samples, s)
	}
	return samples, nil
}

// chain measures turns of one process: each transaction deletes the key of one turn and puts that of the next.
func chain(ctx context.Context, t *trial) ([]sample, error) {
	keys, err := t.bareOwners(ctx, 2)
	if err != nil {
		return nil, err
	}
	if err := keys[0].flip(ctx); err != nil {
		return nil, err
	}
	return t.repeat(ctx, func(lasting time.Duration) (took []time.Duration, err error) {
		for end := time.Now().Add(lasting); len(took) == 0 || time.Now().Before(end); keys[0], keys[1] = keys[1], keys[0] {
			began := time.Now()
			req, enter := keys[0].request(), keys[1].request()
			req.Compare, req.Success = append(req.Compare, enter.Compare...), append(req.Success, enter.Success...)
			resp, err := keys[0].kv.Txn(ctx, req)
			if err != nil {
				return nil, fmt.Errorf("chain: %w", err)
			}
			if !resp.Succeeded {
				return nil, errChanged
			}
			keys[0].held, keys[1].held = 0, resp.Header.Revision
			took = append(took, time.Since(began))
		}
		return took, nil
	})
}
