//go:build unix

package command_test

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
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
	return startProxyAt(t, "127.0.0.1:0", to)
}

// startProxyAt starts one at an address, such as that of one that was cut.
func startProxyAt(t *testing.T, addr, to string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", addr)
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
