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

// bareLocks are locks that nobody else wants: one transaction puts the key, another deletes it.
func bareLocks() implementation {
	return implementation{open: func(ctx context.Context, client *clientv3.Client, ttl time.Duration) (session, error) {
		s, err := openBare(ctx, client, ttl)
		if err != nil {
			return session{}, err
		}
		return session{func(name string) locker { return &bareLocker{bareSession: s, key: []byte(name)} }, s.close}, nil
	}}
}

type bareLocker struct {
	*bareSession
	key  []byte
	held int64 // create revision of the key; 0 if there is no key
}

func (l *bareLocker) Lock(ctx context.Context) error   { return l.flip(ctx, l) }
func (l *bareLocker) Unlock(ctx context.Context) error { return l.flip(ctx, l) }

// flip puts the keys that are not there and deletes those that are, in one transaction.
func (s *bareSession) flip(ctx context.Context, lockers ...*bareLocker) error {
	req := lockers[0].request()
	if len(lockers) > 1 {
		req = &pb.TxnRequest{Success: make([]*pb.RequestOp, len(lockers))}
		for i, l := range lockers {
			req.Success[i] = &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: l.request()}}
		}
	}
	resp, err := s.kv.Txn(ctx, req)
	if err != nil {
		return fmt.Errorf("bare: %w", err)
	}
	done := resp.Succeeded
	for i, l := range lockers {
		if len(lockers) > 1 {
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

func (l *bareLocker) request() *pb.TxnRequest {
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
			l := &ringLocker{name: name, place: place, members: members}
			l.own = bareLocker{bareSession: s, key: l.keyOf(place)}
			return l
		}, s.close}, nil
	}}
}

type ringLocker struct {
	name    string
	place   int
	members *int
	own     bareLocker
	before  clientv3.WatchChan // of the key before
}

func (l *ringLocker) keyOf(place int) []byte { return fmt.Appendf(nil, "%s/%d", l.name, place) }

func (l *ringLocker) Lock(ctx context.Context) error {
	begins := l.before == nil && l.place == 0
	if l.before == nil {
		l.before = l.own.watch(string(l.keyOf((l.place + *l.members - 1) % *l.members)))
	}
	if err := l.own.Lock(ctx); err != nil || begins {
		return err
	}
	select {
	case resp := <-l.before:
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

func (l *ringLocker) Unlock(ctx context.Context) error { return l.own.Unlock(ctx) }

// groupOps is how many operations a group commit carries: nearly the server's default limit.
const groupOps = 120

// bareOwners returns n bare locks with different names.
func (t *trial) bareOwners(ctx context.Context, n int) ([]*bareLocker, error) {
	t.impl = bareLocks()
	lockers, err := t.owners(ctx, n)
	bare := make([]*bareLocker, len(lockers))
	for i, l := range lockers {
		bare[i] = l.(*bareLocker) //nolint:forcetypeassert // bareLocks makes no other lockers
	}
	return bare, err
}

// pairsInGroups measures pairs on n locks as group commits, one after the other, which go through the locks in a cycle.
func pairsInGroups(n int) measurement {
	return func(ctx context.Context, t *trial) ([]sample, error) {
		lockers, err := t.bareOwners(ctx, n)
		if err != nil {
			return nil, err
		}
		began := map[*bareLocker]time.Time{} // when the present pair of each lock began
		next, group := 0, make([]*bareLocker, min(n, groupOps))
		return t.repeat(ctx, func(lasting time.Duration) (took []time.Duration, err error) {
			for end := time.Now().Add(lasting); len(took) == 0 || time.Now().Before(end); {
				now := time.Now()
				for i := range group {
					group[i], next = lockers[next], (next+1)%n
				}
				if err := group[0].flip(ctx, group...); err != nil {
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
	lockers, err := t.bareOwners(ctx, t.scale.holds)
	if err != nil {
		return nil, err
	}
	var samples []sample
	for _, line := range []string{"acquire", "release"} {
		s, err := t.measure(ctx, func() error {
			for group := range slices.Chunk(lockers, groupOps) {
				if err := group[0].flip(ctx, group...); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		s.line, s.ops = line, len(lockers)
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
	if err := keys[0].Lock(ctx); err != nil {
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
