package fakeetcd

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// version is one state of a key. Its kv is never changed once it is stored.
type version struct {
	rev int64
	kv  *mvccpb.KeyValue // nil: deleted
}

// store keeps every state of every key since the last compaction. Server.mu guards it.
type store struct {
	rev       int64
	compacted int64
	keys      map[string][]version // oldest first
	history   []Change             // oldest first; not compacted
}

// at returns the state of a key at a revision, nil when it did not exist.
func (s *store) at(key string, rev int64) *mvccpb.KeyValue {
	for _, v := range slices.Backward(s.keys[key]) {
		if v.rev <= rev {
			return v.kv
		}
	}
	return nil
}

// span returns the keys in etcd's range [key, end) that existed at a revision, sorted.
func (s *store) span(key, end []byte, rev int64) []*mvccpb.KeyValue {
	if len(end) == 0 {
		if kv := s.at(string(key), rev); kv != nil {
			return []*mvccpb.KeyValue{kv}
		}
		return nil
	}
	var kvs []*mvccpb.KeyValue
	for k := range s.keys {
		if !inRange([]byte(k), key, end) {
			continue
		}
		if kv := s.at(k, rev); kv != nil {
			kvs = append(kvs, kv)
		}
	}
	slices.SortFunc(kvs, func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Key, b.Key) })
	return kvs
}

// openEnded is the API's encoding of everything from a key on.
func openEnded(end []byte) bool { return len(end) == 1 && end[0] == 0 }

// inRange reports whether k is in [key, end). Without an end that is the key alone.
func inRange(k, key, end []byte) bool {
	switch {
	case len(end) == 0:
		return bytes.Equal(k, key)
	case openEnded(end):
		return bytes.Compare(k, key) >= 0
	default:
		return bytes.Compare(k, key) >= 0 && bytes.Compare(k, end) < 0
	}
}

// read answers a range request; cur is the newest revision that the reader may see.
func (s *store) read(r *pb.RangeRequest, cur int64) (*pb.RangeResponse, error) {
	rev := r.Revision
	if rev <= 0 {
		rev = cur
	}
	if err := s.readable(rev, cur); err != nil {
		return nil, err
	}
	kvs := s.span(r.Key, r.RangeEnd, rev)
	resp := &pb.RangeResponse{
		Header: &pb.ResponseHeader{Revision: cur},
		Count:  int64(len(kvs)), // before filters and limit
	}
	if r.CountOnly {
		return resp, nil
	}
	kvs = filtered(kvs, r)
	bounds := r.MinModRevision | r.MaxModRevision | r.MinCreateRevision | r.MaxCreateRevision
	if r.SortOrder == pb.RangeRequest_NONE && r.Limit > 0 && bounds == 0 {
		kvs = kvs[:min(len(kvs), int(r.Limit)+1)] // then etcd reads no more, even where it sorts them
	}
	kvs = sorted(kvs, r)
	if r.Limit > 0 && int64(len(kvs)) > r.Limit {
		kvs = kvs[:r.Limit]
		resp.More = true
	}
	for _, kv := range kvs {
		kv = cloned(kv)
		if r.KeysOnly {
			kv.Value = nil
			if r.SortTarget != pb.RangeRequest_VALUE {
				kv.Lease = 0 // etcd answers from its index, which does not have it
			}
		}
		resp.Kvs = append(resp.Kvs, kv)
	}
	return resp, nil
}

func (s *store) readable(rev, cur int64) error {
	switch {
	case rev > cur:
		return rpctypes.ErrGRPCFutureRev
	case rev < s.compacted:
		return rpctypes.ErrGRPCCompacted
	}
	return nil
}

func filtered(kvs []*mvccpb.KeyValue, r *pb.RangeRequest) []*mvccpb.KeyValue {
	return slices.DeleteFunc(kvs, func(kv *mvccpb.KeyValue) bool {
		return r.MaxModRevision != 0 && kv.ModRevision > r.MaxModRevision ||
			r.MinModRevision != 0 && kv.ModRevision < r.MinModRevision ||
			r.MaxCreateRevision != 0 && kv.CreateRevision > r.MaxCreateRevision ||
			r.MinCreateRevision != 0 && kv.CreateRevision < r.MinCreateRevision
	})
}

func sorted(kvs []*mvccpb.KeyValue, r *pb.RangeRequest) []*mvccpb.KeyValue {
	slices.SortStableFunc(kvs, func(a, b *mvccpb.KeyValue) int {
		if r.SortOrder == pb.RangeRequest_DESCEND {
			a, b = b, a
		}
		return compareBy(r.SortTarget, a, b)
	})
	return kvs
}

func compareBy(target pb.RangeRequest_SortTarget, a, b *mvccpb.KeyValue) int {
	switch target {
	case pb.RangeRequest_VERSION:
		return cmp.Compare(a.Version, b.Version)
	case pb.RangeRequest_CREATE:
		return cmp.Compare(a.CreateRevision, b.CreateRevision)
	case pb.RangeRequest_MOD:
		return cmp.Compare(a.ModRevision, b.ModRevision)
	case pb.RangeRequest_VALUE:
		return bytes.Compare(a.Value, b.Value)
	default:
		return bytes.Compare(a.Key, b.Key)
	}
}

// compact forgets the states that no read at rev or later can see.
func (s *store) compact(rev int64) error {
	switch {
	case rev <= s.compacted:
		return rpctypes.ErrGRPCCompacted
	case rev > s.rev:
		return rpctypes.ErrGRPCFutureRev
	}
	s.compacted = rev
	for k, vs := range s.keys {
		for len(vs) > 1 && vs[1].rev <= rev {
			vs = vs[1:]
		}
		if vs[0].rev <= rev && vs[0].kv == nil {
			vs = vs[1:]
		}
		s.keys[k] = vs
	}
	maps.DeleteFunc(s.keys, func(_ string, vs []version) bool { return len(vs) == 0 })
	return nil
}

func cloned(kv *mvccpb.KeyValue) *mvccpb.KeyValue {
	if kv == nil {
		return nil
	}
	return &mvccpb.KeyValue{
		Key:            bytes.Clone(kv.Key),
		CreateRevision: kv.CreateRevision,
		ModRevision:    kv.ModRevision,
		Version:        kv.Version,
		Value:          bytes.Clone(kv.Value),
		Lease:          kv.Lease,
	}
}

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
