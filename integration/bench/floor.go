package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// floor is what any lock on etcd pays at least, measured with bare requests beside those who stand on it.
type floor struct {
	// acquires are commits: a transaction that makes a key if it is not there.
	acquires []time.Duration
	// releases are hand-overs: from sending a transaction that deletes a key if it is there, to the event at a watch of
	// another client, which was in place before.
	releases []time.Duration
}

// measureFloor makes and deletes a key n times, and keeps it in between for as long as the section lasts: after a pause
// even a bare request takes longer than one of many in a row.
func measureFloor(ctx context.Context, t *trial, section time.Duration, n int) (floor, error) {
	holder, err := t.client()
	if err != nil {
		return floor{}, err
	}
	waiter, err := t.client()
	if err != nil {
		return floor{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	key := t.name("floor")
	events := waiter.Watch(ctx, key, clientv3.WithCreatedNotify())
	if created := <-events; !created.Created {
		return floor{}, fmt.Errorf("floor: no watch: %w", errors.Join(created.Err(), ctx.Err()))
	}
	var f floor
	const warmUp = 5
	for i := range n + warmUp {
		began := time.Now()
		absent := clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
		if _, err := holder.Txn(ctx).If(absent).Then(clientv3.OpPut(key, "")).Commit(); err != nil {
			return floor{}, fmt.Errorf("floor: %w", err)
		}
		acquire := time.Since(began)
		if _, err := awaitEvent(ctx, events, mvccpb.Event_PUT); err != nil {
			return floor{}, err
		}

		if err := sleep(ctx, section); err != nil {
			return floor{}, err
		}
		present := clientv3.Compare(clientv3.CreateRevision(key), ">", 0)
		done := make(chan error, 1)
		began = time.Now()
		go func() {
			_, err := holder.Txn(ctx).If(present).Then(clientv3.OpDelete(key)).Commit()
			done <- err
		}()
		at, err := awaitEvent(ctx, events, mvccpb.Event_DELETE)
		if err != nil {
			return floor{}, err
		}
		if err := <-done; err != nil {
			return floor{}, fmt.Errorf("floor: %w", err)
		}
		if i >= warmUp {
			f.acquires = append(f.acquires, acquire)
			f.releases = append(f.releases, at.Sub(began))
		}
	}
	return f, nil
}

// awaitEvent returns when the next event, of the wanted type, has come.
func awaitEvent(ctx context.Context, events clientv3.WatchChan, want mvccpb.Event_EventType) (time.Time, error) {
	select {
	case resp := <-events:
		at := time.Now()
		if err := resp.Err(); err != nil {
			return at, fmt.Errorf("floor: watch: %w", err)
		}
		if len(resp.Events) != 1 || resp.Events[0].Type != want {
			return at, fmt.Errorf("floor: watch: got %v, want one event %v", resp.Events, want)
		}
		return at, nil
	case <-ctx.Done():
		return time.Time{}, fmt.Errorf("floor: watch: %w", context.Cause(ctx))
	}
}
