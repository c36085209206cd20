package etcdflags_test

import (
	"context"
	"crypto/x509"
	"flag"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/leasefence/leasefence/examples/internal/etcdflags"
)

func parse(t *testing.T, endpoint string, args ...string) (clientv3.Config, error) {
	t.Helper()
	var f etcdflags.Flags
	flags := flag.NewFlagSet("test", flag.ContinueOnError)
	f.Register(flags)
	require.NoError(t, flags.Parse(args))
	return f.Config([]string{endpoint})
}

func write(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func put(t *testing.T, c clientv3.Config) error {
	t.Helper()
	client, err := clientv3.New(c)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err = client.Put(ctx, "key", "value")
	return err
}

// The flags reach a server that requires a client certificate, a user and a password.
func TestFlags_Config_reachesASecuredServer(t *testing.T) {
	certs, err := transport.SelfCert(zap.NewNop(), t.TempDir(), []string{"127.0.0.1:0"}, 1, x509.ExtKeyUsageClientAuth)
	require.NoError(t, err)
	cfg := embed.NewConfig()
	cfg.Dir = t.TempDir()
	loopback := []url.URL{{Scheme: "https", Host: "127.0.0.1:0"}}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = loopback, loopback
	cfg.ListenPeerUrls = nil
	cfg.UnsafeNoFsync, cfg.EnableGRPCGateway = true, false
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.ClientTLSInfo = transport.TLSInfo{
		CertFile: certs.CertFile, KeyFile: certs.KeyFile, TrustedCAFile: certs.CertFile, ClientCertAuth: true,
	}
	etcd, err := embed.StartEtcd(cfg)
	require.NoError(t, err)
	t.Cleanup(etcd.Close)
	<-etcd.Server.ReadyNotify()
	endpoint := etcd.Clients[0].Addr().String()

	tls := []string{"-cacert", certs.CertFile, "-cert", certs.CertFile, "-key", certs.KeyFile}
	c, err := parse(t, endpoint, tls...)
	require.NoError(t, err)
	require.NoError(t, put(t, c))

	client, err := clientv3.New(c)
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	_, err = client.UserAdd(t.Context(), "root", "secret")
	require.NoError(t, err)
	_, err = client.UserGrantRole(t.Context(), "root", "root")
	require.NoError(t, err)
	_, err = client.AuthEnable(t.Context())
	require.NoError(t, err)
	for password, ok := range map[string]bool{"secret": true, "secret\n": true, "other": false} {
		c, err := parse(t, endpoint, append(tls, "-user", "root", "-password-file", write(t, password))...)
		require.NoError(t, err)
		require.Equal(t, ok, put(t, c) == nil)
	}
}
