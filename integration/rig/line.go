package rig

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
)

// Line is a client whose connection to each member of a cluster goes through a proxy.
type Line struct {
	Proxies []*faults.Proxy
	In      *faults.Interceptor
	Client  *clientv3.Client
}

// NewLine connects a client to servers, each through a new proxy.
func NewLine(tb testing.TB, endpoints []string, opts ...etcdtest.ClientOption) *Line {
	tb.Helper()
	return Over(tb, NewProxies(tb, endpoints), opts...)
}

// NewProxies returns a proxy for each server.
func NewProxies(tb testing.TB, endpoints []string) []*faults.Proxy {
	tb.Helper()
	var proxies []*faults.Proxy
	for _, addr := range endpoints {
		proxies = append(proxies, faults.NewProxy(tb, addr))
	}
	return proxies
}

// Over connects a client through proxies, which it may share with other clients.
func Over(tb testing.TB, proxies []*faults.Proxy, opts ...etcdtest.ClientOption) *Line {
	tb.Helper()
	l := &Line{Proxies: proxies, In: faults.NewInterceptor(tb)}
	var addrs []string
	for _, p := range proxies {
		addrs = append(addrs, p.Addr())
	}
	l.Client = etcdtest.NewClient(tb, addrs, append(opts, etcdtest.Dial(l.In.DialOptions()...))...)
	return l
}

// Each calls do with each proxy.
func (l *Line) Each(do func(*faults.Proxy)) {
	for _, p := range l.Proxies {
		do(p)
	}
}

// Heal restores all proxies. Rules of the interceptor stay.
func (l *Line) Heal() { l.Each((*faults.Proxy).Restore) }
