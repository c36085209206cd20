package etcdproc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/rpc"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/backend"
	_ "go.etcd.io/etcd/server/v3/storage/wal" // has the variable, and sets it before init below
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/leasefence/leasefence/integration/child"
)

// Member describes one member of a cluster. Each of its starts needs all of it.
type Member struct {
	Name       string
	Dir        string // its data
	ClientAddr string // host:port
	PeerAddr   string // host:port
	Cluster    string // the names and peer URLs of all members, in etcd's notation
	Alone      bool   // the cluster has no other members
	Settings   Settings
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

func (s Settings) apply(cfg *embed.Config) {
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

// NewMembers describes the n members of a new cluster, "m0", "m1" and so on, with their data below dir and with free
// ports, which stay theirs until this process ends.
func NewMembers(dir string, n int, settings Settings) ([]Member, error) {
	members := make([]Member, n)
	cluster := make([]string, n)
	for i := range members {
		name := fmt.Sprintf("m%d", i)
		m := Member{Name: name, Dir: filepath.Join(dir, name), Alone: n == 1, Settings: settings}
		var err error
		if m.ClientAddr, err = PickAddr(); err != nil {
			return nil, err
		}
		if m.PeerAddr, err = PickAddr(); err != nil {
			return nil, err
		}
		members[i] = m
		cluster[i] = fmt.Sprintf("%s=http://%s", m.Name, m.PeerAddr)
	}
	for i := range members {
		members[i].Cluster = strings.Join(cluster, ",")
	}
	return members, nil
}

// Config returns the member's configuration: etcd's default without what tests do not use, and the Settings.
func (m Member) Config() *embed.Config {
	cfg := embed.NewConfig()
	cfg.Name = m.Name
	cfg.Dir = m.Dir
	cfg.InitialCluster = m.Cluster
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(newLogger())
	// Nothing here uses the gateway, and it costs goroutines.
	cfg.EnableGRPCGateway = false

	client := url.URL{Scheme: "http", Host: m.ClientAddr}
	peer := url.URL{Scheme: "http", Host: m.PeerAddr}
	cfg.ListenClientUrls = []url.URL{client}
	cfg.AdvertiseClientUrls = []url.URL{client}
	cfg.AdvertisePeerUrls = []url.URL{peer}
	cfg.ListenPeerUrls = []url.URL{peer}
	if m.Alone {
		cfg.ListenPeerUrls = nil
	}
	m.Settings.apply(cfg)
	return cfg
}

// Metrics returns what a server counts, by the name of each metric with its labels, as in the text format of Prometheus:
// a line for each, with its value after the last space. The server's metrics of requests do not count this one.
func Metrics(ctx context.Context, client *http.Client, server string) (map[string]float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Close = true // leave no connection behind
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("etcdproc: read metrics: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("etcdproc: read metrics: status %s", resp.Status)
	}
	all, lines := map[string]float64{}, bufio.NewScanner(resp.Body)
	for lines.Scan() {
		line := lines.Text()
		if end := strings.LastIndexByte(line, ' '); end >= 0 && line[0] != '#' {
			if all[line[:end]], err = strconv.ParseFloat(line[end+1:], 64); err != nil {
				return nil, fmt.Errorf("etcdproc: read metrics: %q: %w", line, err)
			}
		}
	}
	return all, lines.Err()
}

// No common service uses these ports, and they lie below the ranges that Linux (32768-60999) and other systems
// (49152-65535) use for outgoing connections. A server with a port from those ranges could lose it while it is stopped,
// even to its own client: a client that tries to connect to such a port may get the very same port as its local one.
const (
	firstPort = 20000
	lastPort  = 31999
)

// reserved are UDP sockets at the ports that this process has picked. They keep other processes from picking these ports,
// also while a server does not run.
var reserved struct {
	sync.Mutex
	all []net.PacketConn
}

// PickAddr returns a free loopback address, and reserves it until this process ends.
func PickAddr() (string, error) {
	for range 100 {
		// Random, so that test binaries that run at the same time seldom try the same port.
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(firstPort+rand.IntN(lastPort-firstPort+1)))
		own, err := net.ListenPacket("udp", addr)
		if err == nil {
			var l net.Listener
			if l, err = net.Listen("tcp", addr); err == nil {
				reserved.Lock()
				defer reserved.Unlock()
				reserved.all = append(reserved.all, own)
				return addr, l.Close()
			}
			_ = own.Close()
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return "", fmt.Errorf("etcdproc: look for a free port: %w", err)
		}
	}
	return "", fmt.Errorf("etcdproc: 100 ports of %d-%d tried, all in use", firstPort, lastPort)
}

// control is what the program may do to its server, by calls over the standard input and output of the server's process.
type control struct {
	server  *embed.Etcd
	stalled chan backend.BatchTx // has the transaction that Stall has locked
}

// Cut drops all messages to and from another member. Mend undoes that.
func (c *control) Cut(member string, _ *struct{}) error {
	return c.peer(member, c.server.Server.CutPeer)
}

// Mend undoes Cut.
func (c *control) Mend(member string, _ *struct{}) error {
	return c.peer(member, c.server.Server.MendPeer)
}

func (c *control) peer(name string, do func(types.ID)) error {
	for _, m := range c.server.Server.Cluster().Members() {
		if m.Name == name {
			do(m.ID)
			return nil
		}
	}
	return fmt.Errorf("no member %q", name)
}

// Stall takes the lock of the server's backend, so that nothing is applied.
func (c *control) Stall(struct{}, *struct{}) error {
	tx := c.server.Server.Backend().BatchTx()
	tx.Lock()
	c.stalled <- tx
	return nil
}

// GoOn gives the lock back. It must not ask the server for its backend: while a defragmentation waits for the lock, the
// server gives nobody the backend.
func (c *control) GoOn(struct{}, *struct{}) error {
	select {
	case tx := <-c.stalled:
		tx.Unlock()
		return nil
	default:
		return errors.New("it is not stalled")
	}
}

// Slow makes each sync of the log take longer.
func (*control) Slow(d time.Duration, _ *struct{}) error {
	slowness.Store(int64(d))
	return nil
}

// pipes are the two ends of a process's standard input and output on one side.
type pipes struct {
	io.Reader
	io.WriteCloser
}

// processEnv is the environment variable that holds the [Member] that a process runs.
const processEnv = "ETCDPROC_MEMBER"

// readyTimeout bounds the wait until a started server serves clients. That takes a second or two; the rest is for a
// loaded machine.
const readyTimeout = 60 * time.Second

// Serve runs a server and exits if this process was started by [Start]; otherwise it does nothing. Call it first in
// main or TestMain.
func Serve() { child.Play(processEnv, serve) }

// serve returns when the program closes the server's standard input, or ends. It does not shut the server down: etcd's
// data survives that.
func serve(m Member) error {
	// The Ctrl-C that ends the program must not end the server: the program still needs it to clean up.
	signal.Ignore(syscall.SIGINT)
	server, err := embed.StartEtcd(m.Config())
	if err != nil {
		return fmt.Errorf("etcdproc: start server %s: %w", m.Name, err)
	}
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		return fmt.Errorf("etcdproc: server %s ended before it was ready: %w", m.Name, err)
	case <-time.After(readyTimeout):
		return fmt.Errorf("etcdproc: server %s is not ready in %s; it needs a majority to start", m.Name, readyTimeout)
	}
	calls := rpc.NewServer()
	if err := calls.RegisterName("control", &control{server, make(chan backend.BatchTx, 1)}); err != nil {
		return err
	}
	calls.ServeConn(pipes{os.Stdin, os.Stdout})
	return nil
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
