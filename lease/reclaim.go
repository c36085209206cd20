package lease

import (
	"context"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
)

// watchConnection has keys reclaimed each time when the client was without any connection and has one again.
func (g *grant) watchConnection(context.Context) {
	g.s.conn.OnReconnect(g.handles, g.reclaim) //nolint:contextcheck // for the life of the lease, not of the session
}

// reclaim deletes what is attached to the lease though it was released: a restore brings back every key that was there when the
// snapshot was taken, and as long as the lease is renewed such a key stands in its queue and is nobody's. So does one whose
// request has arrived when the reaper had given it up.
//
// Where a restore is seen to take revisions back, the session ends, and the lease with it. Where they were raised, or have
// caught up, nothing tells for certain. But no cluster is restored while it serves, so the keys are read when the client
// has been without a connection, and after a stream of renewals that broke. It is one read and, most often, all.
func (g *grant) reclaim() {
	if _, ever := g.anyKey(); !ever {
		return
	}
	g.once(&g.reclaiming, func(ctx context.Context) {
		g.keys.record(true)
		defer g.keys.record(false)
		var attached [][]byte
		_, err := g.while(ctx, func(a *etcd.Attempt) error {
			resp, err := g.timeToLive(a, clientv3.WithAttachedKeys())
			if err == nil {
				attached = resp.Keys
			}
			return err
		})
		if err != nil && ctx.Err() == nil && g.handles.Err() == nil {
			g.log.Warn("whether keys have come back by a restore is not known", "err", err)
		}
		for _, key := range attached {
			if e, back := g.takeBack(string(key)); back && g.reaper.add(e, true) {
				g.log.Warn("a released key is there again: etcd was restored", "below", e.Prefix)
			}
		}
	})
}

// probe finds out whether the watches of the session have fallen silent, as they do on a member that is cut off: they do not
// fail. The renewals have a stream of their own, and another endpoint perhaps, so they do not tell.
func (g *grant) probe() {
	key, ever := g.anyKey()
	if !ever {
		return
	}
	g.once(&g.probing, func(ctx context.Context) {
		g.s.conn.Streams(g.queue.Bound).Probe(ctx, g.s.conn.Client, key, g.ttl/2)
	})
}

// once runs f in the background, unless it runs already.
func (g *grant) once(running *atomic.Bool, f func(context.Context)) {
	if running.Swap(true) {
		return
	}
	g.s.spawn(func(ctx context.Context) {
		defer running.Store(false)
		f(ctx)
	})
}
