//go:build unix

package main

import (
	"context"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/leasefence/leasefence/examples/internal/exampletest"
	"github.com/leasefence/leasefence/examples/internal/ledger"
	"github.com/leasefence/leasefence/examples/internal/stage"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
	"github.com/leasefence/leasefence/lease/leasetest"
)

// run runs a process of the service. The channel gets what has ended it.
func run(ctx context.Context, t *testing.T, client *clientv3.Client, book string, era uint) (*service, <-chan error) {
	t.Helper()
	c, err := ledger.NewClient(book)
	require.NoError(t, err)
	s := &service{id: "one", election: "leader", address: "127.0.0.1:0", ttl: time.Minute, era: era, client: client, book: c}
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx) }()
	return s, ended
}

// A process whose work fails resigns and ends.
func TestService_endsWhenItsWorkFails(t *testing.T) {
	client := leasetest.New(t).Client(t).Client
	_, ended := run(t.Context(), t, client, "http://127.0.0.1:1", 0)
	require.ErrorContains(t, <-ended, "claim the ledger")
	left, err := client.Get(t.Context(), "", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Empty(t, left.Kvs)
}

// A process ends and says so if the ledger has seen tokens that etcd has not granted yet. A higher era mends that.
func TestService_saysThatEtcdWasRestored(t *testing.T) {
	client := leasetest.New(t).Client(t).Client
	resource, err := ledger.Open(t.Context(), t.TempDir(), false, t.Logf)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, resource.Close()) })
	handler, err := resource.Handler()
	require.NoError(t, err)
	url, end, err := stage.Serve(handler)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, end()) })
	book, err := ledger.NewClient(url)
	require.NoError(t, err)
	require.NoError(t, book.Claim(fence.NewContext(t.Context(), 1_000_000)))
	_, ended := run(t.Context(), t, client, url, 0)
	require.ErrorIs(t, <-ended, lease.ErrRestored)

	ctx, stop := context.WithCancel(t.Context())
	s, ended := run(ctx, t, client, url, 1)
	require.Eventually(t, func() bool {
		last, err := book.Last(ctx)
		seen := s.seen.Load() // nobody, at first
		return err == nil && last.Writer == "one" && seen != nil && seen.Value == "one"
	}, time.Minute, 10*time.Millisecond)
	w := httptest.NewRecorder()
	s.getLeader(w, nil)
	require.Regexp(t, `^{"leader":"one","token":"28147497671\d{4}"}\n$`, w.Body)
	w = httptest.NewRecorder()
	s.postTransfer(w, httptest.NewRequestWithContext(ctx, http.MethodPost, "/transfer?to=nobody", nil))
	require.Equal(t, http.StatusNotFound, w.Code, "%s", w.Body)
	stop()
	require.ErrorIs(t, <-ended, context.Canceled)
	w = httptest.NewRecorder()
	s.postTransfer(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/transfer?to=nobody", nil))
	require.Equal(t, http.StatusConflict, w.Code, "it does not lead any more")
}

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// The demo checks its scenes itself. Every leader has a larger token than the one before it, and a leader that hands over
// or stops does not let the others wait for its lease.
func TestDemo_movesTheLead(t *testing.T) {
	status, text := exampletest.Run(t, nil)
	require.Zero(t, status)
	last := 0
	for _, m := range regexp.MustCompile(`INFO leads token=(\d+)`).FindAllStringSubmatch(text, -1) {
		token, err := strconv.Atoi(m[1])
		require.NoError(t, err)
		require.Greater(t, token, last)
		last = token
	}
	for _, how := range []string{"was asked", "was told to stop"} {
		took := regexp.MustCompile(`leads (\S+) after . ` + how).FindStringSubmatch(text)
		require.NotNil(t, took, how)
		d, err := time.ParseDuration(took[1])
		require.NoError(t, err)
		// A lease is renewed after a third of its TTL, so two thirds are left at least when its holder dies.
		require.Less(t, d, stage.TTL*2/3, "%s: waited until the lease expired", how)
	}
	exampletest.RequireInOrder(t, text, `was killed$`, `was paused$`, `has lost the lead`, `was asked$`, `was told to stop$`, `^The ledger\n    #1 `)
}

// The flags reach a server that requires a client certificate, a user and a password.
func TestConnection_reachesASecuredServer(t *testing.T) {
	certs, err := transport.SelfCert(zap.NewNop(), t.TempDir(), []string{"127.0.0.1:0"}, 1, x509.ExtKeyUsageClientAuth)
	require.NoError(t, err)
	tls := transport.TLSInfo{CertFile: certs.CertFile, KeyFile: certs.KeyFile, TrustedCAFile: certs.CertFile}
	server := tls
	server.ClientCertAuth = true
	endpoint, stop, err := stage.StartEtcd(t.Context(), t.TempDir(), server)
	require.NoError(t, err)
	t.Cleanup(stop)

	password := filepath.Join(t.TempDir(), "password")
	c := connection{endpoints: endpoint, tls: tls}
	client, err := c.client()
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	_, err = client.UserAdd(t.Context(), "root", "secret")
	require.NoError(t, err)
	_, err = client.UserGrantRole(t.Context(), "root", "root")
	require.NoError(t, err)
	_, err = client.AuthEnable(t.Context())
	require.NoError(t, err)
	c.user, c.passwordFile = "root", password
	for text, ok := range map[string]bool{"secret": true, "secret\n": true, "other": false} {
		require.NoError(t, os.WriteFile(password, []byte(text), 0o600))
		client, err := c.client()
		require.Equal(t, ok, err == nil, "%v", err)
		if ok {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			_, err = client.Put(ctx, "key", "value")
			cancel()
			require.NoError(t, err)
			require.NoError(t, client.Close())
		}
	}
	c.passwordFile = ""
	_, err = c.client()
	require.ErrorContains(t, err, "-password-file")
}
