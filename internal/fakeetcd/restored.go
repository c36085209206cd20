package fakeetcd

import (
	"context"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Restorable prepares the client for a restore of its cluster: after a call of restore, its gets, transactions and new
// watches go to other. Call Restorable before the client is used.
func (c *Client) Restorable(other *clientv3.Client) (restore func()) {
	is := new(atomic.Pointer[clientv3.Client])
	is.Store(&clientv3.Client{KV: c.KV, Watcher: c.Watcher})
	c.KV, c.Watcher = presentKV{c.KV, is}, presentWatcher{c.Watcher, is}
	return func() { is.Store(other) }
}

type presentKV struct {
	clientv3.KV
	is *atomic.Pointer[clientv3.Client]
}

func (k presentKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return k.is.Load().Get(ctx, key, opts...)
}

func (k presentKV) Txn(ctx context.Context) clientv3.Txn { return k.is.Load().Txn(ctx) }

type presentWatcher struct {
	clientv3.Watcher
	is *atomic.Pointer[clientv3.Client]
}

func (w presentWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	return w.is.Load().Watch(ctx, key, opts...)
}
