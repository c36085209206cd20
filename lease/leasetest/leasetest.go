// Package leasetest is an etcd in memory for tests of code that uses package lease or election.
//
// The sessions, locks and elections on it are the real ones. A test can play what a real server rarely shows: a process
// that is cut off, a lease that expires, an operator who revokes a lease. In a bubble of testing/synctest that takes no
// time, however long the leases are:
//
//	synctest.Test(t, func(t *testing.T) {
//		srv := leasetest.New(t)
//		s := srv.Session(t, lease.Options{})
//		go service.Run(t.Context(), s.Session)
//		synctest.Wait() // it leads
//		s.Partition()
//		time.Sleep(s.Status().TTL)
//		synctest.Wait() // it has stepped back
//		s.Heal()
//	})
//
// docs/testing.md shows whole tests. The package is for tests only: it switches off the clock that counts the time for
// which the host is suspended, because that clock also runs while a bubble's clock stands still.
package leasetest

import (
	"context"
	"errors"
	"slices"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/clock"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/lease"
)

func init() { clock.System = clock.Clock{} } // the host's boot clock also runs while a bubble's clock stands still

// Server is an etcd of one member. It is safe for concurrent use.
//
// It has keys, transactions, leases and watches. It does not check users or permissions. Leases use the clock of the
// bubble, or the real clock outside of a bubble.
type Server struct{ fake *fakeetcd.Server }

// New starts a server, which ends with the test. For a test in a bubble, call New inside the bubble.
func New(tb testing.TB) *Server {
	tb.Helper()
	s := &Server{fakeetcd.New()}
	tb.Cleanup(s.fake.Close)
	return s
}

// Client is a client of the server with its own network connection, like a process. Its methods are safe for concurrent
// use.
type Client struct {
	*clientv3.Client

	fake *fakeetcd.Client
}

// Client returns a new client, which ends with the test.
func (s *Server) Client(tb testing.TB) *Client {
	tb.Helper()
	c := s.fake.NewClient(context.WithoutCancel(tb.Context())) // tb's clean-ups still use it
	return &Client{c.Client, c}
}

// Partition cuts the client off until Heal: requests, answers and events are held back in both directions. Neither side
// gets an error, as with a network that has lost a route.
func (c *Client) Partition() { c.fake.Cut() }

// Heal ends a partition. Messages that were held back arrive now, unless their sender has given up.
func (c *Client) Heal() { c.fake.Restore() }

// Session is a session on its own client, with methods that disturb it.
type Session struct {
	*lease.Session

	Client *Client

	srv *Server
}

// Session returns a new session, which is closed when the test ends. If the session cannot be made, for example because
// of bad options, the test fails.
func (s *Server) Session(tb testing.TB, opts lease.Options) *Session {
	tb.Helper()
	c := s.Client(tb)
	session, err := lease.NewSession(context.WithoutCancel(tb.Context()), c.Client, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		closed := errors.Is(session.Status().Err, lease.ErrClosed) // by the test, which has the error
		c.Heal()
		if err := session.Close(context.WithoutCancel(tb.Context())); err != nil && !closed && c.Ctx().Err() == nil {
			tb.Errorf("leasetest: %v", err)
		}
	})
	return &Session{session, c, s}
}

// Partition is [Client.Partition] of the session's client. The locks of the session are lost at their deadline.
func (s *Session) Partition() { s.Client.Partition() }

// Heal is [Client.Heal] of the session's client. The session goes on with its lease if the lease has not expired.
func (s *Session) Heal() { s.Client.Heal() }

// Expire cuts the session off until its lease has expired at the server, which takes as long as the lease's TTL, and
// then ends the partition. If ctx ends first, Expire ends the partition and returns ctx's cause.
func (s *Session) Expire(ctx context.Context) error {
	s.Partition()
	defer s.Heal()
	id := s.Status().LeaseID
	return s.srv.fake.Await(ctx, func() bool {
		return !slices.ContainsFunc(s.srv.fake.Leases(), func(l fakeetcd.Lease) bool { return l.ID == id })
	})
}

// Revoke revokes the session's lease, as an operator may with etcdctl. The locks are lost as soon as the session learns
// of it: at once, or somewhat later for locks that are younger than a second. It does nothing if the session has no
// lease.
func (s *Session) Revoke() {
	_ = s.srv.fake.Revoke(s.Status().LeaseID) // fails only if the lease is gone
}

// Holder returns the owner of a lock, or the value of a leader, and whether there is one. The name includes the
// session's prefix. The lock of a node of a tree, for example "a/b", has the name "a/~b". If several readers hold the
// lock, Holder returns the owner of the first.
func (s *Server) Holder(name string) (owner string, ok bool) {
	prefix := name + "/"
	var first int64
	for _, kv := range s.fake.Keys(prefix) {
		if queue.Contends(prefix, kv) && (!ok || kv.CreateRevision < first) {
			owner, ok, first = queue.Text(kv), true, kv.CreateRevision
		}
	}
	return owner, ok
}
