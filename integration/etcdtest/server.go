package etcdtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/leasefence/leasefence/integration/etcdproc"
)

// readyTimeout bounds the wait until a started server serves clients. A single server takes well under a second, and a
// cluster two seconds; the rest is for a loaded machine.
const readyTimeout = 60 * time.Second

// Main runs a package's tests, fails them if a goroutine is left at the end or a check returns an error, and exits. Call
// it from TestMain. No goroutine is exempt: all of etcd's goroutines end sooner or later.
func Main(m *testing.M, checks ...func() error) {
	etcdproc.Serve()
	code := m.Run()
	for _, check := range append(checks, func() error { return goleak.Find() }) {
		if err := check(); code == 0 && err != nil {
			fmt.Fprintf(os.Stderr, "etcdtest: the tests passed, and then: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

// Options of a server. The zero value is what most tests want.
type Options = etcdproc.Settings

// Server is an etcd server in the test's process. It is safe for concurrent use.
type Server struct {
	member etcdproc.Member
	opts   Options

	mu   sync.Mutex                  // guards etcd, and is held while the server starts or stops
	etcd *embed.Etcd                 // nil while stopped
	grpc atomic.Pointer[grpc.Server] // set by etcd right before it serves clients
}

// Start runs a server until the test ends.
func Start(tb testing.TB, opts Options) *Server {
	tb.Helper()
	const attempts = 5
	dir := tb.TempDir()
	for attempt := 1; ; attempt++ {
		members, err := etcdproc.NewMembers(filepath.Join(dir, strconv.Itoa(attempt)), 1)
		require.NoError(tb, err)
		s := &Server{member: members[0], opts: opts}
		// Another process may have taken a port since it was picked.
		if err := s.start(); !errors.Is(err, syscall.EADDRINUSE) || attempt == attempts {
			require.NoError(tb, err)
			tb.Cleanup(s.Crash)
			return s
		}
	}
}

// start starts the server and returns when it serves clients. On an error nothing is left running.
func (s *Server) start() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cfg := s.member.Config()
	s.opts.Apply(cfg)
	cfg.UnsafeNoFsync, cfg.BcryptCost = true, 4 // the lowest cost that bcrypt has
	ready := make(chan struct{})
	cfg.ServiceRegister = func(gs *grpc.Server) {
		s.grpc.Store(gs)
		close(ready)
	}
	if s.etcd, err = embed.StartEtcd(cfg); err != nil {
		return fmt.Errorf("etcdtest: start a server: %w", err)
	}
	select {
	case <-ready:
		return nil
	case err = <-s.etcd.Err():
		err = fmt.Errorf("etcdtest: the server ended before it was ready: %w", err)
	case <-time.After(readyTimeout):
		err = fmt.Errorf("etcdtest: the server is not ready in %s", readyTimeout)
	}
	s.end()
	return err
}

// Endpoint returns the address at which the server listens for clients, as host:port. It is the same after a restart.
func (s *Server) Endpoint() string { return s.member.ClientAddr }

// Etcd returns the running server, for calls that have no method here. It fails the test if the server is stopped.
func (s *Server) Etcd(tb testing.TB) *embed.Etcd {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.NotNil(tb, s.etcd, "the etcd server is stopped")
	return s.etcd
}

// Crash stops the server without notice, and cuts the connections of clients. Data that the server has confirmed is
// kept. Crash returns when the server is gone. On a stopped server it does nothing.
func (s *Server) Crash() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end()
}

// Restart starts the server again, with the same data and ports, and waits until it serves clients. It first stops a
// running server, like Crash.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	s.Crash()
	require.NoError(tb, s.start())
}

// end stops a running server. The caller holds mu.
func (s *Server) end() {
	if s.etcd == nil {
		return
	}
	// Close would end the connections of clients gracefully, and a race within etcd can make an open watch delay it until
	// its timeout of 5 s + 2 × the election timeout.
	if gs := s.grpc.Load(); gs != nil {
		gs.Stop()
	}
	// Close alone would wait forever for a server that never became ready, since it waits for the servers of its clients,
	// which exist only once it is ready.
	s.etcd.Server.HardStop()
	s.etcd.Close()
	s.etcd = nil
}
