package lease

import (
	"context"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/internal/retry"
)

// watchConnection has keys reclaimed each time when the client was without any connection and has one again.
func (g *grant) watchConnection(context.Context) {
	retry.OnReconnect(g.handles, g.s.client, g.reclaim) //nolint:contextcheck // for the life of the lease, not of the session
}

// reclaim deletes what is attached to the lease and was let go: a restore brings back every key that was there when the
// snapshot was taken, and as long as the lease is renewed such a key stands in its queue and is nobody's.
//
// Where a restore is seen to take revisions back, the session ends, and the lease with it. Where they were raised, or have
// caught up, nothing tells for certain. But no cluster is restored while it serves, so the keys are read when the client
// has been without a connection, and after a renewal that was not answered at first. It is one read and, most often, all.
func (g *grant) reclaim() {
	if _, ever := g.anyKey(); !ever || g.reclaiming.Swap(true) {
		return
	}
	spawned := g.s.spawn(func(ctx context.Context) {
		defer g.reclaiming.Store(false)
		g.keys.record(true)
		defer g.keys.record(false)
		var attached [][]byte
		err := retry.While(ctx, g.handles, g.s.client, g.queue.Attempt, func(ctx context.Context) error {
			resp, err := retry.Send(ctx, func(ctx context.Context) (*clientv3.LeaseTimeToLiveResponse, error) {
				return g.s.client.TimeToLive(ctx, g.id, clientv3.WithAttachedKeys())
			})
			if err == nil {
				attached = resp.Keys
			}
			return err
		})
		if err != nil && ctx.Err() == nil && g.handles.Err() == nil {
			g.log.Warn("whether keys have come back by a restore is not known", "err", err)
		}
		for _, key := range attached {
			if e, back := g.takeBack(string(key)); back {
				g.log.Warn("a key that was let go is there again: etcd was restored", "below", e.Prefix)
				g.reaper.add(e, true)
			}
		}
	})
	if !spawned {
		g.reclaiming.Store(false)
	}
}

// record begins, or ends, to remember which keys are let go: where one is, its being attached may have been read before.
func (k *keys) record(begin bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.since = nil
	if begin {
		k.since = make(map[string]struct{})
	}
}

// takeBack takes a key that was attached to the lease, if it is one of the session's and has been free all the time: nobody
// else uses it then.
func (g *grant) takeBack(key string) (queue.Entry, bool) {
	prefix := queue.Below([]byte(key))
	child := key[len(prefix):]
	ours := strings.HasPrefix(child, strconv.FormatInt(int64(g.id), 16)+"-") &&
		strings.HasPrefix(child[strings.LastIndexByte(child, '-')+1:], g.s.nonce)
	g.keys.mu.Lock()
	defer g.keys.mu.Unlock()
	_, taken := g.keys.taken[key]
	_, since := g.keys.since[key]
	if !ours || taken || since {
		return queue.Entry{}, false
	}
	g.keys.taken[key] = struct{}{}
	return queue.Entry{Prefix: prefix, Key: key, Lease: g.id}, true
}
