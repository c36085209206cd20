package network_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// sickHolder is a session with a hold; one of its endpoints will be dead.
type sickHolder struct {
	way      rig.Way
	name     string
	line     *rig.Line
	renewals carriers
	session  *lease.Session
	id       clientv3.LeaseID
	hold     *rig.Hold
	next     <-chan *rig.Hold // receives the hold of the waiter behind it
	answered int              // renewals answered before the endpoint died
}

// One of three endpoints is dead: it accepts connections and never answers. No session loses its lease or its hold, and
// all waiters are served.
func TestNetwork_oneOfThreeEndpointsDead(t *testing.T) {
	t.Parallel()
	const ttl, each, renewals = 5 * time.Second, 4, 4 // more than a TTL
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	direct := cluster.Client(t)
	proxies := rig.NewProxies(t, cluster.Endpoints())
	var holders []*sickHolder
	for _, way := range rig.Ways {
		for i := range each {
			h := &sickHolder{way: way, name: fmt.Sprint(way.Name, i), renewals: newCarriers(faults.LeaseKeepAlive)}
			h.line = rig.Over(t, proxies, h.renewals.option())
			h.session = rig.NewSession(t, h.line.Client, lease.Options{TTL: ttl})
			h.id = h.session.Status().LeaseID
			h.hold = way.MustTake(t, h.session, h.name)
			holders = append(holders, h)
		}
	}
	// Each session also waits for the next one's name, through the same proxies.
	for i, h := range holders {
		h.next = h.way.Wait(t, holders[(i+1)%len(holders)].session, h.name)
	}
	for _, h := range holders {
		rig.AwaitQueue(t, direct, h.name, 2)
	}

	// gRPC chooses at random where a session renews. Kill the endpoint that carries most renewals.
	carry := map[string]int{}
	for _, h := range holders {
		carry[rig.Await(t, h.renewals.addrs, "no renewal is sent")]++
		h.answered = h.line.In.Answered(faults.LeaseKeepAlive)
	}
	busiest := slices.MaxFunc(slices.Collect(maps.Keys(carry)), func(a, b string) int { return cmp.Compare(carry[a], carry[b]) })
	dead := proxies[slices.IndexFunc(proxies, func(p *faults.Proxy) bool { return p.Addr() == busiest })]
	dead.BlackHole()
	unanswered := 0
	for _, h := range holders {
		in := h.line.In
		require.NoError(t, in.AwaitAnswered(rig.Bounded(t), faults.LeaseKeepAlive, h.answered+renewals))
		require.NoError(t, h.hold.Err())
		require.Equal(t, h.id, h.session.Status().LeaseID)
		unanswered += in.Sent(faults.LeaseKeepAlive) - in.Answered(faults.LeaseKeepAlive)
	}
	require.Positive(t, unanswered, "no renewal went to the dead endpoint")

	for _, h := range holders {
		require.NoError(t, h.hold.Free(rig.Bounded(t)))
		next := rig.Await(t, h.next, "a waiter was not served")
		require.Greater(t, next.Token(), h.hold.Token())
		require.NoError(t, next.Free(rig.Bounded(t)))
	}
	for _, h := range holders {
		require.Equal(t, h.id, h.session.Status().LeaseID)
	}
	dead.Restore()
}

// A watch through a black-holed endpoint falls silent. As soon as a renewal stays unanswered, the session opens the
// watch at another endpoint, so a waiter still gets its turn, and a holder still learns that its key was deleted. The
// endpoint stays black-holed until the end of each sub-test. The session's renewals are further apart than the longest
// backoff of a watch: so a watch that were always opened at the sick endpoint, in step with the renewals, would get out
// of step with them.
func TestLock_watchLeavesASickEndpoint(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	direct := cluster.Client(t)
	sick := func(endpoints []string) (line *rig.Line, s *lease.Session, blackHole func()) {
		watches := newCarriers(faults.Watch)
		line = rig.NewLine(t, endpoints, watches.option())
		s = rig.NewSession(t, line.Client, lease.Options{TTL: 4 * time.Second})
		return line, s, func() {
			addr := rig.Await(t, watches.addrs, "no stream is opened")
			line.Proxies[slices.IndexFunc(line.Proxies, func(p *faults.Proxy) bool { return p.Addr() == addr })].BlackHole()
		}
	}
	t.Run("waiter", func(t *testing.T) {
		t.Parallel()
		held := rig.MustLock(t, rig.NewSession(t, direct, lease.Options{}), "waited for")
		line, s, blackHole := sick(cluster.Endpoints())
		granted := rig.Ways[0].Wait(t, s, "waited for")
		// One watch for the predecessor's key, one for its own.
		require.NoError(t, line.In.AwaitAnswered(rig.Bounded(t), faults.Watch, 2))
		blackHole()
		require.NoError(t, held.Unlock(rig.Bounded(t)))
		rig.Await(t, granted, "the waiter was not served")
	})
	t.Run("holder", func(t *testing.T) {
		t.Parallel()
		_, s, blackHole := sick(cluster.Endpoints()[:2])
		l := rig.MustLock(t, s, "held")
		blackHole()
		_, err := direct.Delete(rig.Bounded(t), l.Key())
		require.NoError(t, err)
		rig.RequireLost(t, rig.AwaitEnd(t, l.Context()), lease.ReasonKeyDeleted)
	})
}

// carriers receives the address at which each stream of a method is opened. gRPC chooses it, and reports it only to a
// stats handler.
type carriers struct {
	method string
	addrs  chan string
}

func newCarriers(method string) carriers { return carriers{method, make(chan string, 1000)} }

func (c carriers) option() etcdtest.ClientOption { return etcdtest.Dial(grpc.WithStatsHandler(c)) }

func (c carriers) HandleRPC(_ context.Context, s stats.RPCStats) {
	if out, ok := s.(*stats.OutHeader); ok && out.FullMethod == c.method {
		c.addrs <- out.RemoteAddr.String()
	}
}

func (carriers) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (carriers) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (carriers) HandleConn(context.Context, stats.ConnStats) {}
