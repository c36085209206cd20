package etcdproc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
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

// NewMembers describes the n members of a new cluster, "m0", "m1" and so on, with their data below dir and with free
// ports, which stay theirs until this process ends.
func NewMembers(dir string, n int, settings Settings) ([]Member, error) {
	members := make([]Member, n)
	cluster := make([]string, n)
	for i := range members {
		name := fmt.Sprintf("m%d", i)
		m := Member{Name: name, Dir: filepath.Join(dir, name), Alone: n == 1, Settings: settings}
		var err error
		if m.ClientAddr, err = pickAddr(); err != nil {
			return nil, err
		}
		if m.PeerAddr, err = pickAddr(); err != nil {
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

// pickAddr returns a free loopback address, and reserves it until this process ends.
func pickAddr() (string, error) {
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
