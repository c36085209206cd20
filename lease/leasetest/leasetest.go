// Package leasetest is an etcd in memory for the tests of those who use package lease or election.
//
// The sessions, locks and elections on it are the real ones. A test plays what a real server shows rarely: a process that is cut
// off, a lease that runs out, an operator who revokes it. In a bubble of testing/synctest it takes no time, however long the
// leases are:
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
// docs/testing.md shows whole tests. The package is for tests only: a program that imports it does not notice that its host was
// suspended, since the clock that tells is not that of a bubble.
package leasetest

import (
	"context"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/clock"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
	"github.com/leasefence/leasefence/lease"
)

func init() { clock.System = clock.Clock{} } // the host's boot clock runs on while a bubble's stands still

// Server is an etcd of one member. It is safe for concurrent use.
//
// It has keys, transactions, leases and watches, and does not check users or permissions. Leases run by the clock of the bubble, or
// without one by the real clock.
type Server struct{ fake *fakeetcd.Server }

// New starts a server, which ends with the test. In a bubble it is made inside.
func New(tb testing.TB) *Server {
	tb.Helper()
	s := &Server{fakeetcd.New()}
	tb.Cleanup(s.fake.Close)
	return s
}

// Client is a client of the server with a network of its own, as a process has it. Its methods are safe for concurrent use.
type Client struct {
	*clientv3.Client

	fake *fakeetcd.Client
}

// Client returns a new client, which ends with the test.
func (s *Server) Client(tb testing.TB) *Client {
	tb.Helper()
	c := s.fake.NewClient(context.WithoutCancel(tb.Context())) // what tb cleans up still uses it
	return &Client{c.Client, c}
}

// Partition cuts the client off until Heal: requests, answers and events in both directions are held back. Nobody gets an error,
// as with a network that has lost a route.
func (c *Client) Partition() { c.fake.Cut() }

// Heal ends a partition. What was held back arrives now, unless its sender has given up.
func (c *Client) Heal() { c.fake.Restore() }

// Session is a session on a client of its own, and what can happen to it.
type Session struct {
	*lease.Session

	Client *Client

	srv *Server
}

// Session returns a new session, which is closed when the test ends. The test fails if it cannot be made, for example for its
// options.
func (s *Server) Session(tb testing.TB, opts lease.Options) *Session {
	tb.Helper()
	c := s.Client(tb)
	session, err := lease.NewSession(context.WithoutCancel(tb.Context()), c.Client, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		c.Heal()
		if err := session.Close(context.WithoutCancel(tb.Context())); err != nil && c.Ctx().Err() == nil {
			tb.Errorf("leasetest: %v", err)
		}
	})
	return &Session{session, c, s}
}

// Partition is [Client.Partition] of the session's client. The locks of the session are lost at their deadline.
func (s *Session) Partition() { s.Client.Partition() }

// Heal is [Client.Heal] of the session's client. The session goes on with its lease if that has not run out.
func (s *Session) Heal() { s.Client.Heal() }

// Expire cuts the session off until its lease has run out at the server, which takes as long as the lease's TTL, and ends the
// partition. It ends early if ctx does; the error is ctx's cause then.
func (s *Session) Expire(ctx context.Context) error {
	s.Partition()
	defer s.Heal()
	id := s.Status().LeaseID
	return s.srv.fake.Await(ctx, func() bool {
		for _, l := range s.srv.fake.Leases() {
			if l.ID == id {
				return false
			}
		}
		return true
	})
}

// Revoke revokes the session's lease, as an operator may with etcdctl. The locks are lost as soon as the session learns of it: at
// once, those that are younger than a second somewhat later. It does nothing if there is no lease.
func (s *Session) Revoke() {
	_ = s.srv.fake.Revoke(s.Status().LeaseID) // it is gone already
}

// Holder returns the owner of the lock or the value of the leader with this name, with the session's prefix before it, and whether
// there is one. Of several readers it is the first.
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
