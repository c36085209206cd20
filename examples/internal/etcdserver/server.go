// Package etcdserver runs etcd inside an example, so that users need not install it.
package etcdserver

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// Server is an etcd in this process, with its data in a temporary folder.
type Server struct {
	dir  string
	etcd *embed.Etcd
	grpc *grpc.Server // set before ready is closed
}

// Start starts etcd and waits until it serves clients. The folder's name contains the program's. If Start fails,
// nothing is left. The caller stops the server.
func Start(ctx context.Context, program string) (_ *Server, err error) {
	s := &Server{}
	if s.dir, err = os.MkdirTemp("", "leasefence-"+program+"-*"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()

	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(s.dir, "etcd")
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.UnsafeNoFsync = true // the data does not outlive the run
	cfg.EnableGRPCGateway = false
	// The system picks the port. A single member needs no port for peers.
	loopback := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = loopback, loopback
	cfg.ListenPeerUrls = nil
	ready := make(chan struct{})
	cfg.ServiceRegister = func(gs *grpc.Server) { // etcd calls this right before it serves clients
		s.grpc = gs
		close(ready)
	}
	if s.etcd, err = embed.StartEtcd(cfg); err != nil {
		return nil, err
	}
	select {
	case <-ready:
		return s, nil
	case err := <-s.etcd.Err():
		return nil, fmt.Errorf("etcd ended before it was ready: %w", err)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Endpoint is the address at which the server listens for clients.
func (s *Server) Endpoint() string { return s.etcd.Clients[0].Addr().String() }

// Stop ends the server and removes its folder.
func (s *Server) Stop() error {
	if s.etcd != nil {
		if s.grpc != nil {
			s.grpc.Stop() // Close alone would wait for clients that are still connected
		}
		s.etcd.Server.HardStop() // Close alone would wait forever if the server never became ready
		s.etcd.Close()
	}
	return os.RemoveAll(s.dir)
}
