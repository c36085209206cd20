package etcdproc

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/server/v3/embed"
	_ "go.etcd.io/etcd/server/v3/storage/wal" // has the variable, and sets it before init below
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/leasefence/leasefence/integration/child"
)

// Commands to a server: each is one line on its standard input. The server answers with doneLine or with an error.
const (
	cutCommand   = "cut"   // and the name of another member: drop all messages to and from that member
	mendCommand  = "mend"  // and that name: undoes cut
	stallCommand = "stall" // stop applying committed entries
	goOnCommand  = "go on" // undoes stall
	slowCommand  = "slow"  // and a duration: each sync of the log takes that much longer

	doneLine = "etcdproc: done"
)

// obey executes commands until the program closes the server's standard input, or ends.
func obey(server *embed.Etcd, in io.Reader) error {
	var b backend
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		answer := doneLine
		if err := b.do(server, lines.Text()); err != nil {
			answer = err.Error()
		}
		fmt.Println(answer)
	}
	return lines.Err()
}

// backend holds the lock of the server's backend while the server is stalled.
type backend struct{ release func() }

func (b *backend) do(server *embed.Etcd, command string) error {
	verb, name, _ := strings.Cut(command, " ")
	switch {
	case command == stallCommand && b.release == nil:
		tx := server.Server.Backend().BatchTx()
		tx.Lock()
		b.release = tx.Unlock
		return nil
	case command == goOnCommand && b.release != nil:
		b.release()
		b.release = nil
		return nil
	case verb == slowCommand:
		d, err := time.ParseDuration(name)
		slowness.Store(int64(d))
		return err
	case verb == cutCommand, verb == mendCommand:
		for _, m := range server.Server.Cluster().Members() {
			switch {
			case m.Name != name:
				continue
			case verb == cutCommand:
				server.Server.CutPeer(m.ID)
			default:
				server.Server.MendPeer(m.ID)
			}
			return nil
		}
	}
	return fmt.Errorf("etcdproc: server %s cannot %q now", server.Config().Name, command)
}

// Settings are options of a server. The zero value of a field means etcd's default.
type Settings struct {
	MaxTxnOps     uint // --max-txn-ops
	UnsafeNoFsync bool // --unsafe-no-fsync

	AuthTokenTTL uint   // --auth-token-ttl, in seconds
	BcryptCost   uint   // --bcrypt-cost
	CertFile     string // --cert-file; with it clients must use TLS, while members talk to each other without
	KeyFile      string // --key-file
	ClientCAFile string // --trusted-ca-file, with --client-cert-auth
}

// Apply changes a configuration of [Member.Config].
func (s Settings) Apply(cfg *embed.Config) {
	if s.MaxTxnOps > 0 {
		cfg.MaxTxnOps = s.MaxTxnOps
	}
	cfg.UnsafeNoFsync = s.UnsafeNoFsync
	if s.AuthTokenTTL > 0 {
		cfg.AuthTokenTTL = s.AuthTokenTTL
	}
	if s.BcryptCost > 0 {
		cfg.BcryptCost = s.BcryptCost
	}
	if s.CertFile == "" {
		return
	}
	cfg.ClientTLSInfo.CertFile, cfg.ClientTLSInfo.KeyFile = s.CertFile, s.KeyFile
	cfg.ClientTLSInfo.TrustedCAFile, cfg.ClientTLSInfo.ClientCertAuth = s.ClientCAFile, s.ClientCAFile != ""
	cfg.ListenClientUrls[0].Scheme, cfg.AdvertiseClientUrls[0].Scheme = "https", "https"
}

// Settings returns the settings of the server's present or next run.
func (p *Process) Settings() Settings { return p.order.Settings }

const (
	// processEnv is the environment variable that holds the order of a server's process.
	processEnv = "ETCDPROC_ORDER"
	// readyLine is printed by that process once it serves clients.
	readyLine = "etcdproc: ready"
	// readyTimeout bounds the wait until a started server serves clients. That takes a second or two; the rest is for a
	// loaded machine.
	readyTimeout = 60 * time.Second
)

// order describes the server that a process runs.
type order struct {
	Member   Member
	Settings Settings
}

// Serve runs a server and exits if this process was started by [Start]; otherwise it does nothing. Call it first in
// main or TestMain.
func Serve() { child.Play(processEnv, serve) }

// serve returns when the program closes the server's standard input, or ends. It does not shut the server down: etcd's
// data survives that.
func serve(o order) error {
	// The Ctrl-C that ends the program must not end the server: the program still needs it to clean up.
	signal.Ignore(syscall.SIGINT)
	cfg := o.Member.Config()
	o.Settings.Apply(cfg)
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return fmt.Errorf("etcdproc: start server %s: %w", o.Member.Name, err)
	}
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		return fmt.Errorf("etcdproc: server %s ended before it was ready: %w", o.Member.Name, err)
	case <-time.After(readyTimeout):
		return fmt.Errorf("etcdproc: server %s is not ready in %s; it needs a majority to start", o.Member.Name, readyTimeout)
	}
	fmt.Println(readyLine)
	return obey(server, os.Stdin)
}

// walFsyncSec is etcd's metric of the syncs of its log. Its log reports each sync to it before it goes on, so what the
// server confirms waits for Observe.
//
//go:linkname walFsyncSec go.etcd.io/etcd/server/v3/storage/wal.walFsyncSec
var walFsyncSec prometheus.Histogram

// slowness is how long each sync takes longer, in nanoseconds.
var slowness atomic.Int64

func init() { walFsyncSec = slowMetric{walFsyncSec} }

type slowMetric struct{ prometheus.Histogram }

func (m slowMetric) Observe(seconds float64) {
	time.Sleep(time.Duration(slowness.Load()))
	m.Histogram.Observe(seconds)
}

// newLogger returns a logger that writes only what a server logs right before it panics.
func newLogger() *zap.Logger {
	return zap.New(zapcore.NewCore(
		zapcore.NewConsoleEncoder(zap.NewDevelopmentEncoderConfig()),
		zapcore.Lock(os.Stderr),
		zapcore.DPanicLevel,
	))
}
