//go:build unix

package main

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/examples/internal/exampletest"
	"github.com/leasefence/leasefence/lease"
)

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

// newSession is a session that the test's cleanup closes.
func newSession(t *testing.T, client *clientv3.Client) *lease.Session {
	t.Helper()
	session, err := lease.NewSession(exampletest.Bounded(t), client, lease.Options{})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), exampletest.Patience)
		defer cancel()
		require.NoError(t, session.Close(ctx))
	})
	return session
}

func TestLockrun_asAUserOfEtcd(t *testing.T) {
	t.Parallel()
	addr, client := exampletest.StartEtcd(t)
	flags := exampletest.AskForAPassword(t, client)
	require.Zero(t, lockrun(t, addr, append(flags, "job", "--", "true")...).End(t))
}
