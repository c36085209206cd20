package etcdproc

import (
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

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
}

// NewMembers describes the n members of a new cluster, "m0", "m1" and so on, with their data below dir and with free
// ports, which stay theirs until this process ends.
func NewMembers(dir string, n int) ([]Member, error) {
	members := make([]Member, n)
	cluster := make([]string, n)
	for i := range members {
		name := fmt.Sprintf("m%d", i)
		m := Member{Name: name, Dir: filepath.Join(dir, name), Alone: n == 1}
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

// Config returns etcd's default configuration for the member, without what tests do not use.
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
	return cfg
}
