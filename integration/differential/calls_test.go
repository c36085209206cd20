package differential

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// dice is the random choice of a call.
type dice struct{ *rand.Rand }

// in returns true once in n times.
func (d dice) in(n int) bool { return d.IntN(n) == 0 }

func pick[T any](d dice, of ...T) T { return of[d.IntN(len(of))] }

// some returns each of the options once in n times.
func (d dice) some(n int, of ...clientv3.OpOption) []clientv3.OpOption {
	return slices.DeleteFunc(of, func(clientv3.OpOption) bool { return !d.in(n) })
}

// call makes one call and records its answer or error.
func (y *party) call(d dice) {
	switch n := d.IntN(100); {
	case n < 28:
		resp, err := y.txn(d)
		y.record((*pb.TxnResponse)(resp), err)
	case n < 44:
		key, value, opts := y.put(d)
		if d.in(8) {
			key = "z"
		}
		resp, err := y.client.Put(y.ctx, key, value, opts...)
		y.record((*pb.PutResponse)(resp), err)
	case n < 47:
		key, opts := y.del(d, clientv3.WithFromKey())
		resp, err := y.client.Delete(y.ctx, key, opts...)
		y.record((*pb.DeleteRangeResponse)(resp), err)
	case n < 67:
		key, opts := y.get(d)
		resp, err := y.client.Get(y.ctx, key, opts...)
		y.record((*pb.RangeResponse)(resp), err)
	case n < 69:
		resp, err := y.client.Compact(y.ctx, y.revision(d))
		y.record((*pb.CompactionResponse)(resp), err)
	case n < 71: // several at a time, since the server takes up to 100 ms to serve watches of past revisions
		for range 2 + d.IntN(4) {
			y.watch(d)
		}
	case n < 74 && len(y.watches) > 0:
		y.stop(d.IntN(len(y.watches)))
	default:
		y.callLease(d)
	}
}

func (y *party) callLease(d dice) {
	id := y.leaseID(d)
	switch d.IntN(6) {
	case 0, 1:
		y.grant(d)
	case 2:
		resp, err := y.client.Revoke(y.ctx, id)
		y.record((*pb.LeaseRevokeResponse)(resp), err)
	case 3:
		var opts []clientv3.LeaseOption
		if d.in(2) {
			opts = append(opts, clientv3.WithAttachedKeys())
		}
		resp, err := y.client.TimeToLive(y.ctx, id, opts...)
		if err != nil {
			y.record(nil, err)
			return
		}
		ttl := resp.TTL
		if 0 < ttl && ttl <= resp.GrantedTTL {
			ttl = 1 // the remaining time differs
		}
		slices.SortFunc(resp.Keys, bytes.Compare) // etcd has no order
		y.record(&pb.LeaseTimeToLiveResponse{
			Header: resp.ResponseHeader, ID: int64(resp.ID), TTL: ttl, GrantedTTL: resp.GrantedTTL, Keys: resp.Keys,
		}, nil)
	case 4:
		resp, err := y.client.KeepAliveOnce(y.ctx, id)
		if err != nil {
			y.record(nil, err)
			return
		}
		y.record(&pb.LeaseKeepAliveResponse{Header: resp.ResponseHeader, ID: int64(resp.ID), TTL: resp.TTL}, nil)
	default:
		y.keepAlive(d)
	}
}

// grant asks for a lease that outlives the program, or for another TTL. It revokes a short lease at once.
func (y *party) grant(d dice) {
	ttl := int64(3600)
	if d.in(4) {
		ttl = pick[int64](d, -1, 0, 1, 7200, 9_000_000_000, 9_000_000_001)
	}
	resp, err := y.client.Grant(y.ctx, ttl)
	if err != nil {
		y.record(nil, err)
		return
	}
	y.leases = append(y.leases, resp.ID)
	if ttl < 3600 {
		_, _ = y.client.Revoke(y.ctx, resp.ID) // it may have expired
	}
	y.record(&pb.LeaseGrantResponse{Header: resp.ResponseHeader, ID: int64(resp.ID), TTL: resp.TTL}, nil)
}

// keepAlive renews a few leases on a stream: it sends all requests first and then receives the answers.
func (y *party) keepAlive(d dice) {
	st, err := y.openKeepAlive(y.ctx, "1")
	if err != nil {
		y.fail(err)
		return
	}
	n := 1 + d.IntN(3)
	for range n {
		if err := st.Send(&pb.LeaseKeepAliveRequest{ID: int64(y.leaseID(d))}); err != nil {
			y.fail(err)
		}
	}
	for range n {
		resp, err := st.Recv()
		y.record(resp, err)
	}
	_ = st.CloseSend()
}

// watch opens a watch on its own stream, so that a progress notice shows that all events of this watch have arrived.
func (y *party) watch(d dice) {
	y.opened++
	w := &watch{n: y.opened}
	w.ctx, w.cancel = context.WithCancel(metadata.AppendToOutgoingContext(y.ctx, "watch", strconv.Itoa(w.n)))
	if d.in(2) {
		w.ctx = clientv3.WithRequireLeader(w.ctx)
	}
	key := y.key(d)
	opts := append(y.span(d, key, clientv3.WithFromKey()), d.some(4, clientv3.WithCreatedNotify(), clientv3.WithFilterPut(), clientv3.WithFilterDelete())...)
	opts = append(opts, d.some(2, clientv3.WithPrevKV())...)
	if d.in(2) {
		w.from = y.revision(d)
		opts = append(opts, clientv3.WithRev(w.from))
	}
	w.ch = y.client.Watch(w.ctx, key, opts...)
	y.watches = append(y.watches, w)
}

func (y *party) txn(d dice) (*clientv3.TxnResponse, error) {
	cmps, then, or := y.body(d, 0)
	return y.client.Txn(y.ctx).If(cmps...).Then(then...).Else(or...).Commit()
}

// body returns the parts of a random transaction; depth is 0 for the outermost one.
func (y *party) body(d dice, depth int) (cmps []clientv3.Cmp, then, or []clientv3.Op) {
	for range d.IntN(3) {
		cmps = append(cmps, y.compare(d))
	}
	branch := func() (ops []clientv3.Op) {
		for range d.IntN(4) {
			ops = append(ops, y.op(d, depth))
		}
		return ops
	}
	then, or = branch(), branch()
	if d.in(40) { // 128 operations are allowed, including those of outer transactions
		for range pick(d, 126, 128, 129, 129) {
			then = append(then, clientv3.OpGet("a"))
		}
	}
	return cmps, then, or
}

func (y *party) op(d dice, depth int) clientv3.Op {
	switch n := d.IntN(10); {
	case n < 3 && depth < 3:
		return clientv3.OpTxn(y.body(d, depth+1))
	case n < 7:
		key, value, opts := y.put(d)
		return clientv3.OpPut(key, value, opts...)
	case n < 8:
		if d.in(8) { // only "z": the fake refuses a deletion from a key on in a transaction that puts one of those keys
			return clientv3.OpDelete("z", clientv3.WithFromKey())
		}
		key, opts := y.del(d)
		return clientv3.OpDelete(key, opts...)
	default:
		key, opts := y.get(d)
		return clientv3.OpGet(key, opts...)
	}
}

func (y *party) compare(d dice) clientv3.Cmp {
	key, how := y.key(d), pick(d, "=", "=", "!=", "<", ">")
	var c clientv3.Cmp
	switch d.IntN(6) {
	case 0:
		c = clientv3.Compare(clientv3.CreateRevision(key), how, pick(d, 0, y.revision(d)))
	case 1:
		c = clientv3.Compare(clientv3.ModRevision(key), how, pick(d, 0, y.revision(d)))
	case 2:
		c = clientv3.Compare(clientv3.Version(key), how, d.IntN(4))
	case 3:
		c = clientv3.Compare(clientv3.Value(key), how, pick(d, "", "1", "2"))
	case 4:
		c = clientv3.Compare(clientv3.LeaseValue(key), how, pick(d, 0, y.leaseID(d)))
	case 5:
		c = pick(d, clientv3.CreateRevision, clientv3.ModRevision, clientv3.Version, clientv3.Value)(key)
	}
	switch {
	case d.in(6):
		return c.WithPrefix()
	case d.in(6):
		return c.WithRange(pick(d, "a/2", "c", "\x00"))
	}
	return c
}

func (y *party) put(d dice) (key, value string, opts []clientv3.OpOption) {
	value = pick(d, "", "", "1", "2")
	if d.in(40) {
		value = strings.Repeat("x", pick(d, 1<<20, 3<<19, 3<<19, 3<<19, 3<<19, 2<<20))
	}
	opts = slices.Concat(d.some(3, clientv3.WithLease(y.leaseID(d)), clientv3.WithPrevKV()),
		d.some(25, clientv3.WithIgnoreValue(), clientv3.WithIgnoreLease()))
	return y.key(d), value, opts
}

func (y *party) del(d dice, more ...clientv3.OpOption) (key string, opts []clientv3.OpOption) {
	key = y.key(d)
	if d.in(2) {
		opts = y.span(d, key, more...)
	}
	return key, append(opts, d.some(2, clientv3.WithPrevKV())...)
}

func (y *party) get(d dice) (key string, opts []clientv3.OpOption) {
	key = y.key(d)
	opts = slices.Concat(y.span(d, key, clientv3.WithFromKey()),
		d.some(12,
			clientv3.WithKeysOnly(), clientv3.WithSerializable(), clientv3.WithCountOnly(), clientv3.WithRev(y.revision(d)),
			clientv3.WithMinModRev(y.revision(d)), clientv3.WithMaxModRev(y.revision(d)),
			clientv3.WithMinCreateRev(y.revision(d)), clientv3.WithMaxCreateRev(y.revision(d))),
		d.some(2,
			clientv3.WithLimit(pick[int64](d, -1, 0, 1, 1, 1, 2, 2, 3)),
			clientv3.WithSort(clientv3.SortTarget(d.IntN(5)), pick(d, clientv3.SortNone, clientv3.SortNone, clientv3.SortAscend, clientv3.SortDescend))))
	if d.in(60) {
		opts = append(opts, pick(d, clientv3.WithSort(5, clientv3.SortAscend), clientv3.WithSort(clientv3.SortByKey, 3)))
	}
	return key, opts
}

func (y *party) key(d dice) string {
	if d.in(200) {
		return ""
	}
	return pick(d, "a", "a/1", "a/2", "a/2/x", "a/3", "a/4", "a/5", "b", "b/1")
}

// span widens a key to a range, sometimes an empty one.
func (y *party) span(d dice, key string, more ...clientv3.OpOption) []clientv3.OpOption {
	switch {
	case d.in(3) || key == "": // for a range of an empty key the client asks for everything
		return nil
	case d.in(3):
		return []clientv3.OpOption{clientv3.WithPrefix()}
	default:
		return []clientv3.OpOption{pick(d, append(more, clientv3.WithRange("a/2"), clientv3.WithRange("c"))...)}
	}
}

// revision returns mostly a recent revision, seldom a compacted or a future one.
func (y *party) revision(d dice) int64 {
	switch {
	case d.in(40):
		return pick[int64](d, -9, -1, 0, 1)
	case d.in(5):
		return y.base - 2 + d.Int64N(y.rev-y.base+6)
	default:
		return max(y.base, y.rev-d.Int64N(6))
	}
}

// leaseID returns mostly the ID of a recent lease, which may have been revoked, seldom one that was never granted.
func (y *party) leaseID(d dice) clientv3.LeaseID {
	if n := len(y.leases); n > 0 && !d.in(12) {
		return y.leases[n-1-d.IntN(min(n, 3))]
	}
	return 7
}
