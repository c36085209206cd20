package etcdtest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"

	"github.com/leasefence/leasefence/integration/etcdproc"
)

// readyTimeout bounds the wait until a started server serves clients. A single server takes well under a second, and a
// cluster two seconds; the rest is for a loaded machine.
const readyTimeout = 60 * time.Second

// Server is an etcd server in the test's process. It is safe for concurrent use.
type Server struct {
	member etcdproc.Member
	opts   Options

	mu      sync.Mutex // guards running, and is held while the server starts or stops
	running *instance  // nil while stopped
}

// instance is one run of a server.
type instance struct {
	etcd  *embed.Etcd
	ready chan struct{} // closed when it serves clients
	grpc  atomic.Pointer[grpc.Server]
}

// Start runs a server until the test ends.
func Start(tb testing.TB, opts Options) *Server {
	tb.Helper()
	members, err := startMembers(tb.TempDir(), 1, opts)
	require.NoError(tb, err)
	tb.Cleanup(func() { crashAll(members) })
	return members[0]
}

// startMembers starts the n members of a new cluster with their data below dir, and waits until they serve clients.
func startMembers(dir string, n int, opts Options) ([]*Server, error) {
	const attempts = 5
	for attempt := 1; ; attempt++ {
		members, err := newMembers(filepath.Join(dir, strconv.Itoa(attempt)), n, opts)
		if err != nil {
			return nil, err
		}
		err = startAll(members)
		if err == nil {
			return members, nil
		}
		// Another process may have taken a port since it was picked. A cluster identifies its members by their addresses,
		// so all members start again.
		if attempt == attempts || !errors.Is(err, syscall.EADDRINUSE) {
			return nil, err
		}
	}
}

func newMembers(dir string, n int, opts Options) ([]*Server, error) {
	described, err := etcdproc.NewMembers(dir, n)
	if err != nil {
		return nil, err
	}
	members := make([]*Server, n)
	for i, m := range described {
		members[i] = &Server{member: m, opts: opts}
	}
	return members, nil
}

// startAll starts the members of a new cluster and waits until they serve clients. On an error it stops all of them.
func startAll(members []*Server) error {
	runs := make([]*instance, len(members))
	for i, s := range members {
		var err error
		if runs[i], err = s.launch(); err != nil {
			crashAll(members)
			return err
		}
	}
	// The first member may campaign now: the others run and can vote.
	return await(members, runs, runs[0])
}

// await returns when the launched members serve clients. On an error it stops all members.
func await(members []*Server, runs []*instance, candidate *instance) error {
	errs := make([]error, len(runs))
	var wg sync.WaitGroup
	for i, run := range runs {
		wg.Go(func() { errs[i] = run.await(run == candidate) })
	}
	wg.Wait()
	err := errors.Join(errs...)
	if err != nil {
		crashAll(members)
	}
	return err
}

func crashAll(members []*Server) {
	var wg sync.WaitGroup
	for _, s := range members {
		wg.Go(s.Crash)
	}
	wg.Wait()
}

// launch starts the server without waiting until it is ready.
func (s *Server) launch() (*instance, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running != nil {
		return nil, fmt.Errorf("etcdtest: server %s is running already", s.member.Name)
	}
	run := &instance{ready: make(chan struct{})}
	var err error
	if run.etcd, err = embed.StartEtcd(s.config(run.serve)); err != nil {
		return nil, fmt.Errorf("etcdtest: start server %s: %w", s.member.Name, err)
	}
	s.running = run
	return run, nil
}

// serve is called by etcd right before it serves clients.
func (r *instance) serve(gs *grpc.Server) {
	r.grpc.Store(gs)
	close(r.ready)
}

// await returns when the server serves clients. A candidate campaigns without waiting for its election timeout, which
// would be most of the time that a cluster takes to start.
func (r *instance) await(candidate bool) error {
	name := r.etcd.Config().Name
	timeout := time.NewTimer(readyTimeout)
	defer timeout.Stop()
	hurry := time.NewTicker(5 * time.Millisecond)
	defer hurry.Stop()
	for {
		select {
		case <-r.ready:
			return nil
		case err := <-r.etcd.Err():
			return fmt.Errorf("etcdtest: server %s ended before it was ready: %w", name, err)
		case <-timeout.C:
			return fmt.Errorf("etcdtest: server %s is not ready in %s; it needs a majority to start", name, readyTimeout)
		case <-hurry.C:
			if candidate {
				r.campaign()
			}
		}
	}
}

// campaign makes a server campaign if it knows of no leader.
func (r *instance) campaign() {
	srv := r.etcd.Server
	if srv.Leader() != 0 {
		return
	}
	// A leader sends this message to its successor. The server ignores it until it is able to campaign, and await repeats
	// it, so the error does not matter.
	_ = srv.Process(context.Background(), &raftpb.Message{
		Type: raftpb.MsgTimeoutNow.Enum(),
		To:   new(uint64(srv.MemberID())),
		From: new(uint64(srv.MemberID())),
	})
}

// Endpoint returns the address at which the server listens for clients, as host:port. It is the same after a restart.
func (s *Server) Endpoint() string { return s.member.ClientAddr }

// Etcd returns the running server, for calls that have no method here. It fails the test if the server is stopped.
func (s *Server) Etcd(tb testing.TB) *embed.Etcd {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.NotNil(tb, s.running, "etcd server %s is stopped", s.member.Name)
	return s.running.etcd
}

// leaderSeen returns the member's ID and that of the leader it knows of. Both are zero if the server is stopped, and
// leader is zero if it knows of none.
func (s *Server) leaderSeen() (id, leader types.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		return 0, 0
	}
	return s.running.etcd.Server.MemberID(), s.running.etcd.Server.Leader()
}

// Running reports whether the server runs.
func (s *Server) Running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running != nil
}

// Stop shuts the server down in order: a leader transfers its leadership to another member first. It cuts the
// connections of clients, since etcd may wait seconds for them. Stop returns when the server is gone, which in a
// cluster may take a second. On a stopped server it does nothing.
func (s *Server) Stop() {
	s.stop((*instance).shutDown)
}

// Crash stops the server without notice: it cuts the connections of clients, and the other members learn of a lost
// leader from its silence. Data that the server has confirmed is kept. Crash returns when the server is gone, which in
// a cluster may take a second. On a stopped server it does nothing.
func (s *Server) Crash() {
	s.stop((*instance).crash)
}

func (s *Server) stop(end func(*instance)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		return
	}
	end(s.running)
	s.running = nil
}

// Restart starts the server again, with the same data and ports, and waits until it serves clients. It first stops a
// running server, like Stop. A member of a cluster needs a majority to become ready.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	s.Stop()
	run, err := s.launch()
	require.NoError(tb, err)
	// No candidate: a restarted member must not campaign against a leader that it has not heard from yet. And a member
	// that has compacted its log panics if it campaigns before it has applied the rest.
	require.NoError(tb, await([]*Server{s}, []*instance{run}, nil))
}

// shutDown ends the run in order.
func (r *instance) shutDown() {
	r.cutClients()
	r.etcd.Close()
}

// crash ends the run at once. Close alone would wait forever for a server that never became ready, since it waits for
// the servers of its clients, which exist only once it is ready.
func (r *instance) crash() {
	r.cutClients()
	r.etcd.Server.HardStop()
	r.etcd.Close()
}

// cutClients ends the connections of clients. Close would end them gracefully, and a race within etcd can make an open
// watch delay it until its timeout of 5 s + 2 × the election timeout.
func (r *instance) cutClients() {
	if gs := r.grpc.Load(); gs != nil {
		gs.Stop()
	}
}
