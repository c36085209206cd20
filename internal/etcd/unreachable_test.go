package etcd_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/connectivity"

	"github.com/leasefence/leasefence/internal/etcd"
)

// listener serves connections until the test ends. serve gets the number of earlier connections.
func listener(t *testing.T, serve func(conn *net.TCPConn, before int)) string {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		for before := 0; ; before++ {
			conn, err := l.AcceptTCP()
			if err != nil {
				return
			}
			serving.Go(func() {
				serve(conn, before)
				_ = conn.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		serving.Wait()
	})
	return l.Addr().String()
}

// reset ends a connection without sending anything.
func reset(conn *net.TCPConn, _ int) { _ = conn.SetLinger(0) }

// dial returns a client of addr that has failed to connect.
func dial(t *testing.T, addr string, config *tls.Config) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, TLS: config})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	conn := client.ActiveConnection()
	conn.Connect()
	for state := conn.GetState(); state != connectivity.TransientFailure; state = conn.GetState() {
		require.True(t, conn.WaitForStateChange(t.Context(), state))
	}
	return client
}

// giveUp sends a request that waits for a connection until bound is over.
func giveUp(t *testing.T, client *clientv3.Client, bound time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	return etcd.Of(client).Do(ctx, 50*time.Millisecond, func(a *etcd.Attempt) error {
		_, err := a.Get("key")
		return err
	})
}

func TestDo_saysWhyThereIsNoConnection(t *testing.T) {
	const refuses = "as it does if it refuses the client's TLS certificate, or if it requires TLS and the client does not use it"
	closed := listener(t, reset)
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, gone.Close())
	for name, row := range map[string]struct {
		addr   string
		config *tls.Config
		want   string
	}{
		"nobody listens":           {gone.Addr().String(), nil, "connection refused"},
		"ended at once":            {closed, nil, refuses},
		"ended in a TLS handshake": {closed, &tls.Config{}, ""}, //nolint:gosec // as a user would
	} {
		t.Run(name, func(t *testing.T) {
			err := giveUp(t, dial(t, row.addr, row.config), 100*time.Millisecond)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, "(no connection: ")
			require.ErrorContains(t, err, row.want)
		})
	}
}

// In TLS 1.3 the server's alert about a certificate arrives in only some of the attempts to connect. Do remembers it.
func TestDo_remembersTheServersAlert(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	server := &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		ClientAuth:   tls.RequireAnyClientCert,
		MinVersion:   tls.VersionTLS13,
		NextProtos:   []string{"h2"},
	}
	var lost atomic.Bool
	again := make(chan struct{}, 100)
	addr := listener(t, func(conn *net.TCPConn, before int) {
		if before > 0 {
			lost.Store(true)
			again <- struct{}{}
			reset(conn, before)
			return
		}
		_ = tls.Server(conn, server).Handshake()
		// Reads on, so that the alert arrives.
		for b := make([]byte, 1000); ; {
			if _, err := conn.Read(b); err != nil {
				return
			}
		}
	})
	client := dial(t, addr, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // the server's is not what is tested
	require.ErrorContains(t, etcd.Of(client).Unreachable(t.Context()), "remote error: tls: certificate required")

	ctx, cancel := context.WithCancelCause(t.Context())
	mine := errors.New("mine")
	n := 0
	err = etcd.Of(client).Do(ctx, 50*time.Millisecond, func(a *etcd.Attempt) error {
		if n++; n == 2 {
			client.ActiveConnection().ResetConnectBackoff()
			<-again
			// The state stays TransientFailure from one failure to the next, so this waits for the reason to change.
			for strings.Contains(etcd.Of(client).Unreachable(ctx).Error(), "certificate required") {
				time.Sleep(time.Millisecond)
			}
			cancel(mine)
		}
		_, err := a.Get("key")
		return err
	})
	require.ErrorIs(t, err, mine)
	require.True(t, lost.Load())
	require.ErrorContains(t, err, "remote error: tls: certificate required")
}

func TestDo_saysThatAuthenticationIsMissing(t *testing.T) {
	e := connect(t)
	err := e.Do(t.Context(), time.Second, func(*etcd.Attempt) error { return rpctypes.ErrUserEmpty })
	require.ErrorIs(t, err, rpctypes.ErrUserEmpty)
	require.ErrorContains(t, err, "the server requires authentication, and the client gives no user and password")
}

// Unreachable returns nil for a client that has a connection or is making its first one.
func TestUnreachable_connected(t *testing.T) {
	e := connect(t)
	require.NoError(t, e.Unreachable(t.Context()))
	_, err := e.Once(t.Context()).Get("key")
	require.NoError(t, err)
	require.NoError(t, e.Unreachable(t.Context()))
}
