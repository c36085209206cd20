//go:build unix

package main

import (
	"context"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/leasefence/leasefence/lease"
)

// startEtcd runs a server until the test ends.
func startEtcd(t *testing.T) (addr string, client *clientv3.Client) {
	t.Helper()
	any0 := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg := embed.NewConfig()
	cfg.Dir = t.TempDir()
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = any0, any0
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = nil, any0
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.UnsafeNoFsync = true
	cfg.EnableGRPCGateway = false
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	var grpcServer atomic.Pointer[grpc.Server]
	cfg.ServiceRegister = grpcServer.Store
	etcd, err := embed.StartEtcd(cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		if s := grpcServer.Load(); s != nil {
			s.Stop() // Close alone waits for open watches, for seconds
		}
		etcd.Close()
	})
	select {
	case <-etcd.Server.ReadyNotify():
	case <-time.After(patience):
		require.FailNow(t, "etcd is not ready")
	}
	addr = etcd.Clients[0].Addr().String()
	client, err = clientv3.New(clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return addr, client
}

// proxy forwards connections until it is cut.
type proxy struct {
	listener net.Listener
	mu       sync.Mutex // guards conns
	conns    []net.Conn
	wg       sync.WaitGroup
}

func startProxy(t *testing.T, to string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{listener: listener}
	p.wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				_ = client.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, client, server)
			p.mu.Unlock()
			p.wg.Go(func() { _, _ = io.Copy(server, client) })
			p.wg.Go(func() { _, _ = io.Copy(client, server) })
		}
	})
	t.Cleanup(p.cut)
	return p
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

// cut ends all connections and refuses new ones.
func (p *proxy) cut() {
	_ = p.listener.Close()
	p.mu.Lock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// keysOf returns the keys in etcd that begin with prefix.
func keysOf(t *testing.T, client *clientv3.Client, prefix string) []string {
	t.Helper()
	resp, err := client.Get(bounded(t), prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(t, err)
	keys := []string{}
	for _, kv := range resp.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// newSession is a session that the test's cleanup closes.
func newSession(t *testing.T, client *clientv3.Client) *lease.Session {
	t.Helper()
	session, err := lease.NewSession(bounded(t), client, lease.Options{})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		require.NoError(t, session.Close(ctx))
	})
	return session
}
