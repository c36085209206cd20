package etcdtest

import (
	"fmt"
	"os"
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
	// Etcd is the server itself, for calls that have no method here.
	Etcd *embed.Etcd

	endpoint string
}

// Start runs a server until the test ends.
func Start(tb testing.TB, opts Options) *Server {
	tb.Helper()
	members, err := etcdproc.NewMembers(tb.TempDir(), 1)
	require.NoError(tb, err)
	cfg := members[0].Config()
	opts.Apply(cfg)
	cfg.UnsafeNoFsync, cfg.BcryptCost = true, 4 // the lowest cost that bcrypt has
	ready := make(chan *grpc.Server, 1)         // etcd's server for clients, right before it serves them
	cfg.ServiceRegister = func(gs *grpc.Server) { ready <- gs }
	etcd, err := embed.StartEtcd(cfg)
	require.NoError(tb, err)
	var clients *grpc.Server
	tb.Cleanup(func() { crash(etcd, clients) })
	select {
	case clients = <-ready:
	case err := <-etcd.Err():
		require.NoError(tb, err, "the server ended before it was ready")
	case <-time.After(readyTimeout):
		require.Fail(tb, "the server is not ready", "in %s", readyTimeout)
	}
	return &Server{Etcd: etcd, endpoint: members[0].ClientAddr}
}

// Endpoint returns the address at which the server listens for clients, as host:port.
func (s *Server) Endpoint() string { return s.endpoint }

// crash stops a server without notice, cuts the connections of clients, and returns when the server is gone.
func crash(etcd *embed.Etcd, clients *grpc.Server) {
	// Close would end the connections of clients gracefully, and a race within etcd can make an open watch delay it until
	// its timeout of 5 s + 2 × the election timeout.
	if clients != nil {
		clients.Stop()
	}
	// Close alone would wait forever for a server that never became ready, since it waits for the servers of its clients,
	// which exist only once it is ready.
	etcd.Server.HardStop()
	etcd.Close()
}
