package etcdtest

import (
	"context"
	"crypto/tls"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

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

// The methods of this file call the server directly and not through a connection, so the faults that a test injects
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
