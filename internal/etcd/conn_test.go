package etcd_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
	refuse := make(chan struct{})
	addr := listener(t, func(conn *net.TCPConn, before int) {
		if before > 0 { // until then the alert stays the reason, however long the test takes
			select {
			case <-refuse:
			case <-t.Context().Done():
			}
			_ = conn.SetLinger(0) // it ends without a message
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
			close(refuse)
			// The state stays TransientFailure from one failure to the next, so this waits for the reason to change.
			for !strings.Contains(fmt.Sprint(etcd.Of(client).Unreachable(ctx)), "connection reset") {
				time.Sleep(time.Millisecond)
			}
			cancel(mine)
		}
		_, err := a.Get("key")
		return err
	})
	require.ErrorIs(t, err, mine)
	require.ErrorContains(t, err, "remote error: tls: certificate required")
}
