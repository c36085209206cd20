package integration_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/lease"
)

// crowd is many candidates of few sessions, and what goes over the wire for them, renewals apart.
type crowd struct {
	sessions []*lease.Session
	leaders  chan *election.Leadership // as they begin
	wg       sync.WaitGroup

	requests atomic.Int64 // a watch that is opened is one; its end is none
	events   atomic.Int64 // of watches, each as often as it was told

	mu      sync.Mutex      // guards the fields below
	looked  map[string]bool // keys whose candidate has looked who is before it, with that one's key watched
	guarded map[string]bool // keys that were read, with the key itself watched
}

func newCrowd(t *testing.T, srv *etcdtest.Server, sessions int) *crowd {
	t.Helper()
	c := &crowd{leaders: make(chan *election.Leadership), looked: map[string]bool{}, guarded: map[string]bool{}}
	for range sessions {
		in := faults.NewInterceptor(t)
		in.OnRequest(func(method string, req any) {
			watch, ok := req.(*etcdserverpb.WatchRequest)
			if method != faults.LeaseKeepAlive && (!ok || watch.GetCreateRequest() != nil) {
				c.requests.Add(1)
			}
		})
		in.OnAnswer(c.answer)
		client := srv.Client(t, etcdtest.Dial(in.DialOptions()...))
		c.sessions = append(c.sessions, newSession(t, client, lease.Options{}))
	}
	return c
}

func (c *crowd) answer(_ string, req, reply any) {
	if resp, ok := reply.(*etcdserverpb.WatchResponse); ok {
		c.events.Add(int64(len(resp.Events)))
		return
	}
	if !isRead(req) {
		return
	}
	txn := req.(*etcdserverpb.TxnRequest)
	c.mu.Lock()
	defer c.mu.Unlock()
	if isLook(req) {
		c.looked[string(txn.Compare[0].Key)] = true
		return
	}
	for _, op := range txn.Success {
		c.guarded[string(op.GetRequestRange().GetKey())] = true
	}
}

// stand has n candidates campaign on a session, until that is closed, and waits until all stand in the queue.
func (c *crowd) stand(t *testing.T, srv *etcdtest.Server, s *lease.Session, n int) {
	t.Helper()
	before := len(srv.Keys(t, "n/"))
	for range n {
		c.wg.Go(func() {
			l, err := election.Campaign(t.Context(), s, "n", election.Options{})
			if err == nil {
				c.leaders <- l
				return
			}
			assert.True(t, errors.Is(err, lease.ErrClosed) || t.Context().Err() != nil, "%v", err)
		})
	}
	c.awaitSettled(t, awaitQueue(t, srv, "n", before+n))
}

// awaitSettled waits until everybody waits for an event.
func (c *crowd) awaitSettled(t *testing.T, keys []string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		looked, guarded := 0, 0
		c.mu.Lock()
		for _, key := range keys {
			if c.looked[key] {
				looked++
			}
			if c.guarded[key] {
				guarded++
			}
		}
		c.mu.Unlock()
		if looked == len(keys)-1 && guarded == len(keys) { // nobody is before the first
			return
		}
		require.True(t, time.Now().Before(deadline), "of %d candidates %d wait, %d are guarded", len(keys), looked, guarded)
	}
}

// settle waits until nothing more is asked, and returns what was.
func (c *crowd) settle() (requests, events int64) {
	for requests, events = -1, -1; requests != c.requests.Load() || events != c.events.Load(); {
		requests, events = c.requests.Load(), c.events.Load()
		time.Sleep(time.Second / 2) // longer than it takes until a key is watched
	}
	return requests, events
}

// A thousand candidates, each of which stands in etcd's queue by itself: a change of leader wakes two of them at most, and
// costs two requests, the resignation and the next one's look.
func TestCampaign_herd(t *testing.T) {
	t.Parallel()
	const sessions, each, changes = 10, 100, 10
	srv := etcdtest.Start(t, etcdtest.Options{})
	c := newCrowd(t, srv, sessions)
	began := time.Now()
	for _, s := range c.sessions {
		c.stand(t, srv, s, each)
	}
	requests, events := c.settle()
	t.Logf("%d candidates stand after %v, %d requests and %d events", sessions*each, time.Since(began), requests, events)

	leader := <-c.leaders
	for range changes {
		require.NoError(t, leader.Resign(bounded(t)))
		next := <-c.leaders
		require.Greater(t, next.Token(), leader.Token())
		leader = next
	}
	moreRequests, moreEvents := c.settle()
	t.Logf("%d changes: %d requests, %d events", changes, moreRequests-requests, moreEvents-events)
	require.LessOrEqual(t, moreRequests-requests, int64(2*changes))
	// The next one is told, and the last one's session by the one or two watches that the key is guarded by.
	require.LessOrEqual(t, moreEvents-events, int64(3*changes))
	require.Len(t, srv.Keys(t, "n/"), sessions*each-changes)
	require.NoError(t, leader.Err())

	closed := make(chan error)
	for _, s := range c.sessions {
		go func() { closed <- s.Close(bounded(t)) }()
	}
	go func() { // sessions are closed one after the other: some lead in between
		for range c.leaders {
			continue
		}
	}()
	for range c.sessions {
		require.NoError(t, <-closed)
	}
	c.wg.Wait()
	close(c.leaders)
	requireNothingLeft(t, srv)
}
