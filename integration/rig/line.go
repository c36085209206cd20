package rig

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
)

// Line is a client and the network between it and the members of a cluster, each behind a proxy.
type Line struct {
	Proxies []*faults.Proxy
	In      *faults.Interceptor
	Client  *clientv3.Client
}

// NewLine connects a client to servers.
func NewLine(tb testing.TB, endpoints []string, opts ...etcdtest.ClientOption) *Line {
	tb.Helper()
	return Over(tb, NewProxies(tb, endpoints), opts...)
}

// NewProxies are proxies to servers, one each.
func NewProxies(tb testing.TB, endpoints []string) []*faults.Proxy {
	tb.Helper()
	var proxies []*faults.Proxy
	for _, addr := range endpoints {
		proxies = append(proxies, faults.NewProxy(tb, addr))
	}
	return proxies
}

// Over connects a client by way of proxies that others may use too.
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

// Each does something to all directions at once, as far as that is possible.
func (l *Line) Each(do func(*faults.Proxy)) {
	for _, p := range l.Proxies {
		do(p)
	}
}

// Heal ends what proxies do. Rules of the interceptor stay.
func (l *Line) Heal() { l.Each((*faults.Proxy).Restore) }
