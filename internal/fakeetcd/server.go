package fakeetcd

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Server is one etcd member in memory. Its methods are safe for concurrent use, and act at once, without the faked
// network. A server must be closed by [Server.Close].
type Server struct {
	start time.Time
	life  context.Context //nolint:containedctx // ends with Close
	end   context.CancelFunc
	wg    sync.WaitGroup

	// mu guards all of the server and of its clients. Nothing blocks while it is held.
	mu      sync.Mutex
	term    uint64
	store   store
	lessor  lessor
	watches hub
	clients []*Client
	calls   []*Call
	changed chan struct{} // closed and replaced at every event that Await waits for
}

// New starts a server with an empty store at revision 1.
func New() *Server {
	s := &Server{start: time.Now(), term: 2, changed: make(chan struct{})}
	s.store = store{rev: 1, compacted: -1, keys: make(map[string][]version)}
	s.life, s.end = context.WithCancel(context.Background())
	s.lessor = lessor{srv: s, leases: make(map[int64]*lease), nextID: firstLeaseID, rate: 1}
	s.watches = hub{srv: s}
	return s
}

// Close closes the server's clients, stops its timers, drops late requests and waits for all goroutines of the server.
// Further calls do nothing.
func (s *Server) Close() {
	s.mu.Lock()
	s.end()
	s.lessor.schedule()
	if s.watches.timer != nil {
		s.watches.timer.Stop()
	}
	clients := s.clients
	s.mu.Unlock()
	for _, c := range clients {
		_ = c.Close() // its error is only that the context is cancelled
	}
	s.wg.Wait()
}

// Client is NewClient for a test that needs no faults.
func (s *Server) Client(ctx context.Context) *clientv3.Client {
	return s.NewClient(ctx).Client
}

// Rev returns the store's revision.
func (s *Server) Rev() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.rev
}

// Keys returns the keys below prefix with their present states, sorted by name. The empty prefix means all.
func (s *Server) Keys(prefix string) []*mvccpb.KeyValue {
	s.mu.Lock()
	defer s.mu.Unlock()
	var kvs []*mvccpb.KeyValue
	for _, kv := range s.store.span([]byte{0}, []byte{0}, s.store.rev) {
		if strings.HasPrefix(string(kv.Key), prefix) {
			kvs = append(kvs, cloned(kv))
		}
	}
	return kvs
}

// Leases returns the leases that exist, in the order of their expiry.
func (s *Server) Leases() []Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Lease
	for _, l := range s.lessor.byExpiry() {
		out = append(out, Lease{
			clientv3.LeaseID(l.id), l.client, time.Duration(l.ttl) * time.Second, l.expiry, slices.Sorted(maps.Keys(l.keys)),
		})
	}
	return out
}

// Watchers returns the number of watches the server serves.
func (s *Server) Watchers() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.watches.watchers)
}

// Put stores a key without a lease, as an operator would, and returns the new revision.
func (s *Server) Put(key, value string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &tx{srv: s, direct: true}
	t.put(&pb.PutRequest{Key: []byte(key), Value: []byte(value)})
	t.commit()
	return s.store.rev
}

// Delete deletes a key, as an operator would, and reports whether it existed.
func (s *Server) Delete(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &tx{srv: s, direct: true}
	resp := t.deleteRange(&pb.DeleteRangeRequest{Key: []byte(key)})
	t.commit()
	return resp.Deleted > 0
}

// Revoke revokes a lease, as an operator would. It returns rpctypes.ErrLeaseNotFound when there is none.
func (s *Server) Revoke(id clientv3.LeaseID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.lessor.revoke(int64(id), true)
	return rpctypes.Error(err)
}

// Compact drops the history before rev. It returns rpctypes.ErrCompacted or rpctypes.ErrFutureRev if rev is not between
// the last compaction and the present. As in etcd, only watches that are behind rev end.
func (s *Server) Compact(rev int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return rpctypes.Error(s.store.compact(rev))
}

// ChangeLeader restarts every lease at its full TTL and raises the raft term, as a leader change does.
func (s *Server) ChangeLeader() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.term++
	for _, l := range s.lessor.leases {
		s.lessor.refresh(l)
	}
	s.lessor.schedule()
	s.signal()
}

// SetRate sets the rate of the leases' clock relative to the bubble's: at 1.1 a lease lasts for TTL / 1.1. It applies
// to each lease from its grant or next renewal on.
func (s *Server) SetRate(rate float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lessor.rate = rate
}

// Change is one write in the server's history.
type Change struct {
	At   time.Time
	Rev  int64
	Put  bool             // false: a deletion
	Kv   *mvccpb.KeyValue // as it was put; not to be changed
	Prev *mvccpb.KeyValue // as it was before the revision, nil if the key did not exist; not to be changed

	Direct bool // made by Put, Delete or Revoke of the server, as an operator would
}

// History returns every change of keys below prefix, oldest first, including compacted ones.
func (s *Server) History(prefix string) []Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Change
	for _, c := range s.store.history {
		if strings.HasPrefix(string(c.Kv.Key), prefix) {
			out = append(out, c)
		}
	}
	return out
}

// BreakWatches ends every watch stream of every client with err, as [Client.BreakWatches] does.
func (s *Server) BreakWatches(err error) {
	s.mu.Lock()
	clients := slices.Clone(s.clients)
	s.mu.Unlock()
	for _, c := range clients {
		c.BreakWatches(err)
	}
}

// Calls returns what the clients have sent so far, oldest first. Any means every method.
func (s *Server) Calls(m Method) []Call {
	return s.callsOf(func(c *Call) bool { return m == Any || c.Method == m })
}

func (s *Server) callsOf(match func(*Call) bool) []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Call
	for _, c := range s.calls {
		if match(c) {
			out = append(out, *c)
		}
	}
	return out
}

// Await blocks until cond returns true. It calls cond now and after every event: a call is sent, acted on or
// answered, the store changes, a lease or a watch begins or ends. It returns the cause of ctx if that ends first.
func (s *Server) Await(ctx context.Context, cond func() bool) error {
	for {
		// Read before cond is called, so that an event in between is not missed.
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		if cond() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// signal wakes the callers of Await. The caller holds mu.
func (s *Server) signal() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// header describes the store as it is now. The caller holds mu.
func (s *Server) header() *pb.ResponseHeader {
	return &pb.ResponseHeader{ClusterId: 0xfa4e, MemberId: 1, RaftTerm: s.term, Revision: s.store.rev}
}

// untilTick returns the time from now to the first multiple of interval, counted from the start, that is not before at.
func (s *Server) untilTick(interval time.Duration, at time.Time) time.Duration {
	since := at.Sub(s.start)
	if part := since % interval; part > 0 {
		since += interval - part
	}
	return time.Until(s.start.Add(since))
}
