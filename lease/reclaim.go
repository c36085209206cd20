package lease

import (
	"context"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
)

// reclaim deletes keys that are attached to the lease although they were released. A restore brings back every key of
// the snapshot, and as long as the lease is renewed, such a key blocks its queue and belongs to nobody. So does a key
// whose request arrived after the reaper had given it up.
//
// If a restore visibly takes revisions back, the session ends, and the lease with it. If the revisions were raised, or
// have caught up, nothing shows the restore for certain. But no cluster serves while it is restored, so reclaim runs
// after a stream of renewals broke. It is one read, and usually no more.
func (g *grant) reclaim() {
	if _, ever := g.anyKey(); !ever {
		return
	}
	g.once(&g.reclaiming, func(ctx context.Context) {
		g.keys.record(true)
		defer g.keys.record(false)
		var attached [][]byte
		_, err := g.while(ctx, func(a *etcd.Attempt) error {
			resp, err := timeToLive(a, g.s.conn.Client, g.id, clientv3.WithAttachedKeys())
			if err == nil {
				attached = resp.Keys
			}
			return err
		})
		if err != nil && ctx.Err() == nil && g.handles.Err() == nil {
			g.s.log.Warn("released keys that may be there again could not be read", "err", err)
		}
		for _, key := range attached {
			if e, back := g.takeBack(string(key)); back && g.reaper.add(e, true) {
				g.s.log.Warn("a released key is there again: etcd was restored, or a late request arrived", "below", e.Prefix)
			}
		}
	})
}

// probe finds out whether the session's watches have fallen silent. On a member that is cut off they do so without an
// error, and one that lags is behind what was known at the last probe. Renewals do not show that: they have a stream of
// their own, perhaps to another endpoint. Only renew calls probe.
func (g *grant) probe() {
	key, ever := g.anyKey()
	if !ever {
		return
	}
	least := g.probed
	g.probed = g.s.revisions.Highest()
	g.once(&g.probing, func(ctx context.Context) {
		g.s.conn.Streams(g.queue.Bound).Probe(ctx, g.s.conn.Client, key, g.ttl/2, least)
	})
}

// once runs f in the background unless it is already running.
func (g *grant) once(running *atomic.Bool, f func(context.Context)) {
	if running.Swap(true) {
		return
	}
	g.s.spawn(func(ctx context.Context) {
		defer running.Store(false)
		f(ctx)
	})
}
