package etcdtest

import (
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
)

// Options configure a server. The zero value is what most tests want.
type Options struct {
	// TLS, if set, makes the server use TLS with its clients, which need the option [TLS]. The server reads the files
	// again for each connection. Members talk to each other without TLS.
	TLS *transport.TLSInfo
	// Configure, if set, changes the configuration of each member right before each of its starts. It must not change the
	// name, the folder and the URLs.
	Configure func(cfg *embed.Config)
}

// config returns the configuration of one start. The server calls serve right before it serves clients.
func (s *Server) config(serve func(*grpc.Server)) *embed.Config {
	cfg := s.member.Config()
	cfg.UnsafeNoFsync = true
	if s.opts.TLS != nil {
		cfg.ClientTLSInfo = *s.opts.TLS
		cfg.ListenClientUrls[0].Scheme = "https"
		cfg.AdvertiseClientUrls[0].Scheme = "https"
	}
	if s.opts.Configure != nil {
		s.opts.Configure(cfg)
	}
	register := cfg.ServiceRegister
	cfg.ServiceRegister = func(gs *grpc.Server) {
		if register != nil {
			register(gs)
		}
		serve(gs)
	}
	return cfg
}
