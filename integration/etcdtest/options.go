package etcdtest

import (
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/leasefence/leasefence/integration/etcdproc"
)

// Options configure a server. The zero value is what most tests want.
type Options struct {
	// Tick is the heartbeat interval, in whole milliseconds; default 100ms, etcd's own.
	Tick time.Duration
	// Election is the election timeout, in whole milliseconds and at least 5 × Tick; default 1s, etcd's own. The
	// smallest TTL the server grants is 1.5 × Election, rounded up to a second.
	Election time.Duration
	// Fsync makes the server sync its log to the disk before it answers, as in production.
	Fsync bool
	// Logger gets the server's log. Default: nothing but what comes right before a panic, to standard error.
	Logger *zap.Logger
	// TLS, if set, has the server speak TLS to its clients. The files are read again for each connection. A client has to
	// be given its side of it; see [TLS]. Members talk to each other without.
	TLS *transport.TLSInfo
	// Configure, if set, changes the configuration of each member right before each of its starts. It must leave the
	// name, the folder and the URLs alone.
	Configure func(cfg *embed.Config)
}

func (o Options) withDefaults() Options {
	if o.Tick == 0 {
		o.Tick = 100 * time.Millisecond
	}
	if o.Election == 0 {
		o.Election = time.Second
	}
	if o.Logger == nil {
		o.Logger = etcdproc.NewLogger()
	}
	return o
}

// config is the configuration of one start. The server calls serve right before it serves clients.
func (s *Server) config(serve func(*grpc.Server)) *embed.Config {
	cfg := s.member.Config(s.opts.Logger)
	cfg.TickMs = uint(s.opts.Tick.Milliseconds())
	cfg.ElectionMs = uint(s.opts.Election.Milliseconds())
	cfg.UnsafeNoFsync = !s.opts.Fsync
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
