package faults_test

import (
	"bytes"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
)

func TestProxy_refuseLetsNobodyInUntilRestore(t *testing.T) {
	ctx := rig.Bounded(t)
	srv := etcdtest.Start(t, etcdtest.Options{})
	proxy := faults.NewProxy(t, srv.Endpoint())
	old := dial(t, proxy)
	rig.Eventually(t, func() bool { return proxy.Connections() == 1 }, func() string { return "the client is not connected" })

	proxy.Refuse()
	_, err := old.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	// Either Dial or Read sees the reset of a new connection.
	conn, err := net.Dial("tcp", proxy.Addr())
	if err == nil {
		_, err = conn.Read(make([]byte, 1))
		require.NoError(t, conn.Close())
	}
	require.ErrorIs(t, err, syscall.ECONNRESET)
	result := put(ctx, srv.Client(t, etcdtest.Via(proxy.Addr())), "key")
	rig.Eventually(t, func() bool { return proxy.Connections() == 0 }, func() string { return "a connection is left" })
	require.Empty(t, srv.Keys(t, ""))
	require.Empty(t, result)

	proxy.Restore()
	require.NoError(t, <-result)
	require.Equal(t, []string{"key"}, srv.Keys(t, ""))
}

// directions are the two links of a proxy.
var directions = []struct {
	name string
	link func(*faults.Proxy) *faults.Link
}{
	{"requests", func(p *faults.Proxy) *faults.Link { return p.Requests }},
	{"answers", func(p *faults.Proxy) *faults.Link { return p.Answers }},
}

func TestLink_delaysPipelinedAndInOrder(t *testing.T) {
	const delay = 200 * time.Millisecond
	for _, tt := range directions {
		t.Run(tt.name, func(t *testing.T) {
			ctx := rig.Bounded(t)
			proxy := faults.NewProxy(t, echo(t))
			link := tt.link(proxy)
			conn := dial(t, proxy)
			link.Delay(delay)

			// Each chunk arrives before the next is sent, so that they stay 80 chunks. There are so many that a busy machine
			// does not look like delays that add up.
			const chunks, size = 80, 1000
			var sent []byte
			start := time.Now()
			for i := range chunks {
				chunk := bytes.Repeat([]byte{byte(i)}, size)
				sent = append(sent, chunk...)
				_, err := conn.Write(chunk)
				require.NoError(t, err)
				require.NoError(t, link.Await(ctx, func(tr faults.Traffic) bool { return tr.Received == int64(len(sent)) }))
			}
			got := make([]byte, len(sent))
			_, err := io.ReadFull(conn, got)
			took := time.Since(start)
			require.NoError(t, err)
			require.Equal(t, sent, got)
			require.GreaterOrEqual(t, took, delay)
			require.Less(t, took, chunks/2*delay, "a delay that adds up takes %s", chunks*delay)
		})
	}
}

// echo returns the address of a server that sends back what it gets.
func echo(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		_, _ = io.Copy(conn, conn)
		_ = conn.Close()
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	return listener.Addr().String()
}

func dial(t *testing.T, proxy *faults.Proxy) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", proxy.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(rig.Patience)))
	return conn.(*net.TCPConn)
}
