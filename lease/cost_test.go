package lease_test

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// A pair is one acquisition and one release of a lock that nobody else wants. It costs requests and allocations,
// whatever the machine. The allocations counted are those of this library, and those of etcd's client until it sends a
// request. Sending requests and reading answers is left out, since it costs every library the same.
func TestLock_costOfAPair(t *testing.T) {
	for name, tc := range map[string]struct {
		owners      int // goroutines of one session, each with a lock of its own
		pairs       int
		requests    float64 // per pair, at most
		allocations float64
	}{
		"one goroutine":  {1, 200, 2, 50},
		"256 goroutines": {256, 20, 0.03, 40}, // 120 share a request at most
	} {
		inBubble(t, name, func(t *testing.T) {
			client, kv := newServer(t).NewClient(t.Context()), new(willing)
			client.KV = direct{client.KV, kv}
			s, err := lease.NewSession(t.Context(), client.Client, lease.Options{})
			require.NoError(t, err)
			defer func() { _ = s.Close(context.WithoutCancel(t.Context())) }()

			doPairs(t, s, tc.owners, 3) // maps and slices grow first
			var before, after runtime.MemStats
			sent := kv.sent.Load()
			runtime.ReadMemStats(&before)
			doPairs(t, s, tc.owners, tc.pairs)
			runtime.ReadMemStats(&after)
			pairs := float64(tc.owners * tc.pairs)
			requests, allocations := float64(kv.sent.Load()-sent)/pairs, float64(after.Mallocs-before.Mallocs)/pairs
			t.Logf("%.4f requests, %.1f allocations, %.0f bytes", requests, allocations, float64(after.TotalAlloc-before.TotalAlloc)/pairs)
			require.LessOrEqual(t, requests, tc.requests)
			require.LessOrEqual(t, allocations, tc.allocations)
		})
	}
}

// doPairs runs owners goroutines that make pairs pairs each.
func doPairs(t *testing.T, s *lease.Session, owners, pairs int) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range owners {
		name := "jobs/nightly-" + strconv.Itoa(i)
		wg.Go(func() {
			for range pairs {
				l, err := s.Lock(t.Context(), name)
				if err == nil {
					err = l.Unlock(t.Context())
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// direct is a KV that sends transactions in the form in which they travel.
type direct struct {
	clientv3.KV
	kv pb.KVClient
}

func (d direct) Direct() pb.KVClient { return d.kv }

// willing carries out every transaction after a millisecond, without an allocation.
type willing struct {
	pb.KVClient

	sent atomic.Int64
}

func (w *willing) Txn(_ context.Context, req *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	time.Sleep(time.Millisecond)
	w.sent.Add(1)
	return willingly[len(req.Success)], nil
}

// willingly has the answers, by the number of operations.
var willingly = func() (answers [129]*pb.TxnResponse) {
	for n := range answers {
		answers[n] = &pb.TxnResponse{Header: &pb.ResponseHeader{Revision: 1000}, Succeeded: true, Responses: make([]*pb.ResponseOp, n)}
	}
	return answers
}()

// If sessions take a lock in turns, a turn costs a request to enter and one to leave. Behind a waiter it costs one more
// read.
func TestSession_Lock_requestsATurn(t *testing.T) {
	for clients, most := range map[int]float64{2: 2.1, 3: 2.1, 8: 3.2, 32: 3.2} {
		inBubble(t, fmt.Sprint(clients), func(t *testing.T) {
			srv := newServer(t)
			var sessions []*env
			for range clients {
				e := open(t, srv, lease.Options{TTL: time.Hour})
				e.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Before: time.Millisecond, After: time.Millisecond / 2})
				e.c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{After: time.Millisecond / 2})
				sessions = append(sessions, e)
			}
			sent := func() (n int) {
				for _, e := range sessions {
					n += len(e.c.Calls(fakeetcd.Any))
				}
				return n
			}
			rounds := func(n int) {
				var all sync.WaitGroup
				for _, e := range sessions {
					all.Go(func() {
						for range n {
							l, err := e.s.Lock(t.Context(), "a")
							if err != nil {
								t.Error(err)
								return
							}
							time.Sleep(time.Millisecond)
							if err := l.Unlock(t.Context()); err != nil {
								t.Error(err)
							}
						}
					})
				}
				all.Wait()
			}
			rounds(3) // until each stands behind the same key again
			before := sent()
			const turns = 30
			rounds(turns)
			a := float64(sent()-before) / float64(turns*clients)
			t.Logf("%.2f requests a turn", a)
			require.LessOrEqual(t, a, most)
		})
	}
}
