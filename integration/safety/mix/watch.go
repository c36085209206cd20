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

// keyWatch records every change of the key space, from the first revision on. The checkers find it if it misses any.
type keyWatch struct {
	etcd *clientv3.Client
	tape *tape

	mu   sync.Mutex               // guards the fields below
	seen int64                    // the revision up to which all changes are recorded
	keys map[string]history.Event // existing keys that have leases
}

// run watches until ctx ends. A watch that breaks is resumed without a gap, since the mix compacts only what the watch
// has seen.
func (k *keyWatch) run(ctx context.Context) {
	for ctx.Err() == nil {
		watching, cancel := context.WithCancel(ctx)
		for resp := range k.etcd.Watch(watching, "\x00", clientv3.WithFromKey(), clientv3.WithRev(k.revision()+1)) {
			for _, e := range resp.Events {
				k.event(e)
			}
			if n := len(resp.Events); n > 0 { // a response has all changes of a revision
				k.mu.Lock()
				k.seen = resp.Events[n-1].Kv.ModRevision
				k.mu.Unlock()
			}
			if resp.Err() != nil {
				break
			}
		}
		cancel()
		sleep(ctx, 20*time.Millisecond)
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

func (k *keyWatch) live() map[int64]bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	live := map[int64]bool{}
	for _, e := range k.keys {
		live[e.Lease] = true
	}
	return live
}

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

func presentRevision(ctx context.Context, etcd *clientv3.Client) (rev int64, err error) {
	err = insist(ctx, func(ctx context.Context) error {
		resp, err := etcd.Get(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithCountOnly())
		if err == nil {
			rev = resp.Header.Revision
		}
		return err
	})
	return rev, err
}
