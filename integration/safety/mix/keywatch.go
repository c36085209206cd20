package mix

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// keyWatch records every change of the key space, from the first revision on.
type keyWatch struct {
	etcd *clientv3.Client
	tape *tape

	mu      sync.Mutex               // guards the fields below
	seen    int64                    // the revision up to which all changes are recorded; an empty store is at 1
	keys    map[string]history.Event // existing keys that have leases
	failure error
}

func newKeyWatch(etcd *clientv3.Client, t *tape) *keyWatch {
	return &keyWatch{etcd: etcd, tape: t, seen: 1, keys: map[string]history.Event{}}
}

// run watches until ctx ends. A watch that breaks is resumed without a gap, since the mix compacts only what the watch
// has seen.
func (k *keyWatch) run(ctx context.Context) {
	for ctx.Err() == nil {
		k.watch(ctx)
		sleep(ctx, 20*time.Millisecond)
	}
}

func (k *keyWatch) watch(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for resp := range k.etcd.Watch(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithRev(k.revision()+1)) {
		for _, e := range resp.Events {
			k.event(e)
		}
		if resp.CompactRevision > 0 {
			k.fail(fmt.Errorf("mix: revisions up to %d were compacted before the watch had seen them", resp.CompactRevision))
		}
		if resp.Err() != nil {
			return
		}
		// A response has all changes of a revision.
		if n := len(resp.Events); n > 0 {
			k.advance(resp.Events[n-1].Kv.ModRevision)
		}
	}
}

func (k *keyWatch) event(e *clientv3.Event) {
	event := history.Event{Kind: history.Put, Key: string(e.Kv.Key), Revision: e.Kv.ModRevision}
	if e.Type == mvccpb.Event_DELETE {
		event.Kind = history.Delete
	} else {
		event.Created, event.Lease = e.Kv.CreateRevision, e.Kv.Lease
	}
	k.tape.Record(event)
	k.mu.Lock()
	defer k.mu.Unlock()
	if event.Lease != 0 {
		k.keys[event.Key] = event
	} else {
		delete(k.keys, event.Key)
	}
}

// live returns the leases that have keys.
func (k *keyWatch) live() map[int64]bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	live := map[int64]bool{}
	for _, e := range k.keys {
		live[e.Lease] = true
	}
	return live
}

// created returns the keys that were created at that revision.
func (k *keyWatch) created(revision int64) (keys []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, e := range k.keys {
		if e.Created == revision {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys) // so that a seed picks the same key
	return keys
}

func (k *keyWatch) revision() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.seen
}

func (k *keyWatch) advance(to int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seen = to
}

func (k *keyWatch) fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.failure = err
	k.seen++ // past the gap; otherwise the same watch would fail again
}

// err returns an error if the watch has missed a revision.
func (k *keyWatch) err() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.failure
}

// catchUp waits until all present changes of the cluster are recorded.
func (k *keyWatch) catchUp(ctx context.Context) error {
	rev, err := presentRevision(ctx, k.etcd)
	if err != nil {
		return err
	}
	return insist(ctx, func(context.Context) error {
		if seen := k.revision(); seen < rev {
			return fmt.Errorf("mix: the watch is at revision %d, the cluster at %d", seen, rev)
		}
		return nil
	})
}

func presentRevision(ctx context.Context, etcd *clientv3.Client) (int64, error) {
	var rev int64
	err := insist(ctx, func(ctx context.Context) error {
		resp, err := etcd.Get(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithCountOnly())
		if err == nil {
			rev = resp.Header.Revision
		}
		return err
	})
	return rev, err
}

// insist repeats call until it returns no error or ctx ends.
func insist(ctx context.Context, call func(context.Context) error) error {
	for {
		attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := call(attempt)
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
		sleep(ctx, 50*time.Millisecond)
	}
}
