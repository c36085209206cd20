//go:build unix

package stage

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// StartEtcd starts an etcd in this process, with its data in a temporary folder, and waits until it serves clients. Stop
// ends it and removes the folder.
func StartEtcd(ctx context.Context) (endpoint string, stop func() error, err error) {
	dir, err := os.MkdirTemp("", "leasefence-demo-*")
	if err != nil {
		return "", nil, err
	}
	remove := func() error { return os.RemoveAll(dir) }
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
		return "", nil, errors.Join(err, remove())
	}
	stop = func() error {
		etcd.Server.HardStop() // Close alone would wait forever if the server never became ready
		etcd.Close()
		return remove()
	}
	select {
	case <-etcd.Server.ReadyNotify():
		return etcd.Clients[0].Addr().String(), stop, nil
	case err = <-etcd.Err():
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return "", nil, errors.Join(err, stop())
}
