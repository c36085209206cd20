//go:build unix

package main

import (
	"context"
	"crypto/x509"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// The flags reach a server that requires a client certificate, a user and a password.
func TestConnection_reachesASecuredServer(t *testing.T) {
	certs, err := transport.SelfCert(zap.NewNop(), t.TempDir(), []string{"127.0.0.1:0"}, 1, x509.ExtKeyUsageClientAuth)
	require.NoError(t, err)
	tls := transport.TLSInfo{CertFile: certs.CertFile, KeyFile: certs.KeyFile, TrustedCAFile: certs.CertFile}
	cfg := embed.NewConfig()
	cfg.Dir = t.TempDir()
	loopback := []url.URL{{Scheme: "https", Host: "127.0.0.1:0"}}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = loopback, loopback
	cfg.ListenPeerUrls = nil
	cfg.UnsafeNoFsync, cfg.EnableGRPCGateway = true, false
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.ClientTLSInfo = tls
	cfg.ClientTLSInfo.ClientCertAuth = true
	etcd, err := embed.StartEtcd(cfg)
	require.NoError(t, err)
	t.Cleanup(etcd.Close)
	<-etcd.Server.ReadyNotify()

	password := filepath.Join(t.TempDir(), "password")
	c := connection{endpoints: etcd.Clients[0].Addr().String(), tls: tls}
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
