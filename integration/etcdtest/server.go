package etcdtest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

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
	for _, check := range append(checks, leaks) {
		if err := check(); code == 0 && err != nil {
			fmt.Fprintf(os.Stderr, "etcdtest: the tests passed, and then: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

// leaks waits for goroutines that are about to end: on a loaded machine that may take longer than the half second that
// goleak waits.
func leaks() (err error) {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		if err = goleak.Find(); err == nil {
			return nil
		}
	}
	return err
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
	var etcd *embed.Etcd
	var endpoint string
	ready := make(chan *grpc.Server, 1) // etcd's server for clients, right before it serves them
	for tries := 0; etcd == nil; tries++ {
		members, err := etcdproc.NewMembers(tb.TempDir(), 1, opts)
		require.NoError(tb, err)
		endpoint = members[0].ClientAddr
		cfg := members[0].Config()
		cfg.UnsafeNoFsync, cfg.BcryptCost = true, 4 // the lowest cost that bcrypt has
		cfg.ServiceRegister = func(gs *grpc.Server) { ready <- gs }
		etcd, err = embed.StartEtcd(cfg)
		if errors.Is(err, syscall.EADDRINUSE) && tries < 3 { // another program has taken the port since it was picked
			continue
		}
		require.NoError(tb, err)
	}
	var clients *grpc.Server
	tb.Cleanup(func() { crash(etcd, clients) })
	select {
	case clients = <-ready:
	case err := <-etcd.Err():
		require.NoError(tb, err, "the server ended before it was ready")
	case <-time.After(readyTimeout):
		require.Fail(tb, "the server is not ready", "in %s", readyTimeout)
	}
	return &Server{Etcd: etcd, endpoint: endpoint}
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

// Cluster is a set of one or more etcd servers that form one cluster, each in a separate process. It is not safe for
// concurrent use.
type Cluster struct{ *etcdproc.Cluster }

// StartCluster runs a new cluster of n members until the test ends. The processes run the test's binary, where [Main]
// starts the server.
func StartCluster(tb testing.TB, n int, opts Options) *Cluster {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), readyTimeout)
	defer cancel()
	cluster, err := etcdproc.Start(ctx, tb.TempDir(), n, opts)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, cluster.Kill()) })
	return &Cluster{cluster}
}

// Client returns a client of all members, as [NewClient] does.
func (c *Cluster) Client(tb testing.TB, opts ...ClientOption) *clientv3.Client {
	tb.Helper()
	return NewClient(tb, c.Endpoints(), opts...)
}

// ClientOption changes the configuration of a client.
type ClientOption func(cfg *clientv3.Config)

// Dial adds options to the client's connection, for instance interceptors.
func Dial(opts ...grpc.DialOption) ClientOption {
	return func(cfg *clientv3.Config) { cfg.DialOptions = append(cfg.DialOptions, opts...) }
}

// TLS makes the client use TLS.
func TLS(config *tls.Config) ClientOption {
	return func(cfg *clientv3.Config) { cfg.TLS = config }
}

// User makes the client log in as a user. If authentication is on, NewClient gets a token from the server, and fails
// the test if the server refuses.
func User(name, password string) ClientOption {
	return func(cfg *clientv3.Config) { cfg.Username, cfg.Password = name, password }
}

// NewClient returns a client of the given endpoints that is closed when the test ends. The test may close it earlier.
// Unless [User] is given, NewClient does not wait for a connection.
func NewClient(tb testing.TB, endpoints []string, opts ...ClientOption) *clientv3.Client {
	tb.Helper()
	cfg := clientv3.Config{
		Endpoints: endpoints,
		Logger:    zap.NewNop(),
		// gRPC's backoff begins at a second, which would be most of the time of a test that restarts a server.
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond,
			},
			MinConnectTimeout: 20 * time.Second, // gRPC's own
		})},
	}
	for _, opt := range opts {
		opt(&cfg)
	}
	client, err := clientv3.New(cfg)
	require.NoError(tb, err)
	tb.Cleanup(func() {
		// An error means that the test has closed the client already.
		_ = client.Close()
	})
	return client
}

// Client returns a client of the server, as [NewClient] does.
func (s *Server) Client(tb testing.TB, opts ...ClientOption) *clientv3.Client {
	tb.Helper()
	return NewClient(tb, []string{s.Endpoint()}, opts...)
}

// The methods below call the server directly and not through a connection, so the faults that a test injects
// between client and server do not affect them. They may be called in cleanups, which run when the test's context has
// ended.

// KeyValues returns the live keys that begin with prefix, in the order of the keys. With an empty prefix it returns
// all.
func (s *Server) KeyValues(tb testing.TB, prefix string) []*mvccpb.KeyValue {
	tb.Helper()
	// A zero byte as the key and as the end of the range means every key.
	key, end := "\x00", "\x00"
	if prefix != "" {
		key, end = prefix, clientv3.GetPrefixRangeEnd(prefix)
	}
	req := &etcdserverpb.RangeRequest{Key: []byte(key), RangeEnd: []byte(end)}
	resp, err := s.Etcd.Server.Range(context.WithoutCancel(tb.Context()), req)
	require.NoError(tb, err)
	return resp.Kvs
}

// Keys returns the live keys that begin with prefix, sorted. With an empty prefix it returns all. It is never nil.
func (s *Server) Keys(tb testing.TB, prefix string) []string {
	tb.Helper()
	keys := []string{}
	for _, kv := range s.KeyValues(tb, prefix) {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

const debianPath = "/usr/bin/etcdctl"

// Etcdctl returns the path of etcdctl in the version that this module requires. The first call on a machine builds it,
// which takes half a minute; Go's build cache keeps the result for all packages and runs.
func Etcdctl(tb testing.TB) string {
	tb.Helper()
	path, err := buildEtcdctl()
	require.NoError(tb, err)
	return path
}

var buildEtcdctl = sync.OnceValues(func() (string, error) {
	// Only "go tool" caches the linked binary of a tool. With -n it prints the binary's path instead of running it.
	cmd := exec.Command("go", "tool", "-n", "go.etcd.io/etcd/etcdctl/v3")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	path := strings.TrimSpace(string(out))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		return "", fmt.Errorf("etcdtest: build etcdctl: %w", err)
	}
	return path, nil
})

// DebianEtcdctl returns the path of the installed etcdctl, which is 3.4 in Debian's package etcd-client. If there is
// none, it calls [Skip].
func DebianEtcdctl(tb testing.TB) string {
	tb.Helper()
	if _, err := os.Stat(debianPath); err != nil {
		Skip(tb, "needs %s, for instance from Debian's package etcd-client: %v", debianPath, err)
	}
	return debianPath
}

// noSkipEnv is set where all that tests need is installed, as in CI: a test that would be skipped there is an error.
const noSkipEnv = "LEASEFENCE_NO_SKIP"

// Skip skips a test that needs something this machine lacks. If LEASEFENCE_NO_SKIP is set, it fails the test instead.
func Skip(tb testing.TB, format string, args ...any) {
	tb.Helper()
	if os.Getenv(noSkipEnv) != "" {
		tb.Fatalf("would be skipped, and "+noSkipEnv+" is set: "+format, args...)
	}
	tb.Skipf(format, args...) //nolint:forbidigo // This is the helper that the rule demands.
}
