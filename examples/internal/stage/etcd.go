//go:build unix

package stage

import (
	"context"
	"net/url"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// startEtcd starts an etcd in this process, with its data in a folder, and waits until it serves clients.
func startEtcd(ctx context.Context, dir string) (endpoint string, stop func(), err error) {
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(dir, "etcd")
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.UnsafeNoFsync = true // the data does not outlive the run
	cfg.EnableGRPCGateway = false
	// The system picks the port. A single member needs no port for peers.
	loopback := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = loopback, loopback
	cfg.ListenPeerUrls = nil
	etcd, err := embed.StartEtcd(cfg)
	if err != nil {
		return "", nil, err
	}
	stop = func() {
		etcd.Server.HardStop() // Close alone would wait forever if the server never became ready
		etcd.Close()
	}
	select {
	case <-etcd.Server.ReadyNotify():
		return etcd.Clients[0].Addr().String(), stop, nil
	case err = <-etcd.Err():
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	stop()
	return "", nil, err
}
