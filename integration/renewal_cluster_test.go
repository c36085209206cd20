package integration_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/lease"
)

// pain 16: the session outlives a change of leader, in order or not, and when the cluster is gone for good the holder
// is told so, and why.
func TestSession_survivesALeaderChange(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	s := newSession(t, cluster.Client(t), lease.Options{TTL: 5 * time.Second})
	id := s.Status().LeaseID
	l := mustLock(t, s, "name")

	first := cluster.Leader(t)
	second := cluster.Members[0]
	if second == first {
		second = cluster.Members[1]
	}
	cluster.MoveLeader(t, second)
	requireRenewed(t, s, id)

	// Clients still reach the old leader, which has nothing to say any more: renewals fail, and succeed elsewhere.
	next := changesOf(t, s)
	requireNext(t, next, lease.Held, id)
	cluster.Isolate(t, second)
	third := cluster.NextLeader(t, second)
	requireNext(t, next, lease.Jeopardy, id)
	requireNext(t, next, lease.Held, id)
	requireAlive(t, third, l)
	cluster.Heal(t, second)

	third.Crash()
	fourth := cluster.NextLeader(t, third)
	requireRenewed(t, s, id)
	requireAlive(t, fourth, l)

	cluster.Stop()
	requireLost(t, awaitDone(t, l), lease.DeadlinePassed, id)
}

// pain 24: one black-holed endpoint of three costs no session its lease. Of stock sessions a third lose theirs.
func TestSession_survivesASickEndpoint(t *testing.T) {
	t.Parallel()
	const sessions, renewals = 6, 12 // four TTLs
	type member struct {
		link *clusterLink
		s    *lease.Session
		l    *lease.Lock
		id   clientv3.LeaseID
		n    int // renewals answered before
	}
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	proxies := newClusterProxies(t, cluster)
	var members []*member
	for i := range sessions {
		link := newClusterLink(t, proxies)
		s := newSession(t, link.client, lease.Options{TTL: minTTL})
		members = append(members, &member{
			link: link, s: s, l: mustLock(t, s, fmt.Sprint("name", i)), id: s.Status().LeaseID,
			n: link.in.Answered(faults.LeaseKeepAlive),
		})
	}

	proxies[0].BlackHole()
	unanswered := 0
	for _, m := range members {
		require.NoError(t, m.link.in.AwaitAnswered(bounded(t), faults.LeaseKeepAlive, m.n+renewals))
		require.NoError(t, context.Cause(m.l.Context()))
		require.Equal(t, m.id, m.s.Status().LeaseID)
		unanswered += m.link.in.Sent(faults.LeaseKeepAlive) - m.link.in.Answered(faults.LeaseKeepAlive)
	}
	require.Greater(t, unanswered, sessions, "the sick endpoint was not asked")
}

// pain 24: a watch on an endpoint that is cut off falls silent. It is opened again elsewhere as soon as a renewal goes
// unanswered, so a waiter still gets its turn, and a holder still learns that its key was deleted.
func TestLock_watchLeavesASickEndpoint(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	direct := cluster.Client(t)
	sound := newSession(t, direct, lease.Options{})

	// The sick endpoint stays black-holed until the end of each sub-test: whoever waits for it waits for ever.
	t.Run("waiter, freed at once", func(t *testing.T) {
		link := newClusterLink(t, newClusterProxies(t, cluster))
		held, granted := waitBehind(t, sound, link, "at once")
		link.carrier(t).BlackHole()
		require.NoError(t, held.Unlock(bounded(t)))
		requireGranted(t, granted)
	})
	t.Run("waiter, freed after the move", func(t *testing.T) {
		link := newClusterLink(t, newClusterProxies(t, cluster))
		held, granted := waitBehind(t, sound, link, "after the move")
		sick := link.carrier(t)
		sick.BlackHole()
		for link.carrier(t) == sick {
			continue // the client takes its endpoints in turn
		}
		require.NoError(t, held.Unlock(bounded(t)))
		requireGranted(t, granted)
	})
	for _, endpoints := range []int{2, 3} {
		t.Run(fmt.Sprintf("holder, one of %d endpoints", endpoints), func(t *testing.T) {
			link := newClusterLink(t, newClusterProxies(t, cluster)[:endpoints])
			s := newSession(t, link.client, lease.Options{TTL: 4 * time.Second})
			l := mustLock(t, s, "held")
			link.carrier(t).BlackHole()
			_, err := direct.Delete(bounded(t), l.Key())
			require.NoError(t, err)
			requireLost(t, awaitDone(t, l), lease.KeyDeleted, s.Status().LeaseID)
		})
	}
}

// waitBehind makes a session of link wait for a lock that another holds. What it is granted comes from the channel.
func waitBehind(t *testing.T, holder *lease.Session, link *clusterLink, name string) (held *lease.Lock, granted <-chan error) {
	t.Helper()
	held = mustLock(t, holder, name)
	// Renewals are further apart here than the longest pause before a watch is opened again, or else a watch that is
	// opened at the same sick endpoint each time, in step with the renewals, would sooner or later fall out of step.
	s := newSession(t, link.client, lease.Options{TTL: 4 * time.Second})
	ctx := bounded(t)
	result := make(chan error, 1)
	go func() {
		_, err := s.Lock(ctx, name)
		result <- err
	}()
	// One watch for the predecessor's key, one for its own.
	require.NoError(t, link.in.AwaitAnswered(ctx, faults.Watch, 2))
	return held, result
}

func requireGranted(t *testing.T, granted <-chan error) {
	t.Helper()
	start := time.Now()
	require.NoError(t, <-granted) // bounded by its context
	t.Logf("granted %v after the release", time.Since(start))
}

// clusterLink is a client of all members of a cluster, each through a proxy.
type clusterLink struct {
	proxies []*faults.Proxy
	in      *faults.Interceptor
	client  *clientv3.Client
	watches chan string // the address of each watch stream that is opened
}

func newClusterProxies(t *testing.T, cluster *etcdtest.Cluster) []*faults.Proxy {
	t.Helper()
	var proxies []*faults.Proxy
	for _, m := range cluster.Members {
		proxies = append(proxies, faults.NewProxy(t, m.Endpoint()))
	}
	return proxies
}

func newClusterLink(t *testing.T, proxies []*faults.Proxy) *clusterLink {
	t.Helper()
	l := &clusterLink{proxies: proxies, in: faults.NewInterceptor(t), watches: make(chan string, 1000)}
	var addrs []string
	for _, p := range proxies {
		addrs = append(addrs, p.Addr())
	}
	l.client = etcdtest.NewClient(t, addrs,
		etcdtest.Dial(l.in.DialOptions()...), etcdtest.Dial(grpc.WithStatsHandler(watchCarriers{l.watches})))
	return l
}

// carrier waits for the next watch stream to be opened and returns the proxy that carries it.
func (l *clusterLink) carrier(t *testing.T) *faults.Proxy {
	t.Helper()
	select {
	case addr := <-l.watches:
		i := slices.IndexFunc(l.proxies, func(p *faults.Proxy) bool { return p.Addr() == addr })
		require.GreaterOrEqual(t, i, 0, addr)
		return l.proxies[i]
	case <-time.After(patience):
		require.FailNow(t, "no watch is opened")
		return nil
	}
}

// watchCarriers tells at which address each watch stream is opened: gRPC chooses, and says so only here.
type watchCarriers struct{ addrs chan<- string }

func (w watchCarriers) HandleRPC(_ context.Context, s stats.RPCStats) {
	if out, ok := s.(*stats.OutHeader); ok && out.FullMethod == faults.Watch {
		w.addrs <- out.RemoteAddr.String()
	}
}

func (watchCarriers) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (watchCarriers) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (watchCarriers) HandleConn(context.Context, stats.ConnStats) {}
