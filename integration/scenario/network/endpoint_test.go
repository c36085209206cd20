package network_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// One of three endpoints is dead: it accepts connections and never answers. No session of leasefence loses its lease or
// its hold, and all waiters are served. As the control, etcd's own sessions that renew through the dead endpoint, a
// third of them, are lost.
func TestNetwork_oneOfThreeEndpointsDead(t *testing.T) {
	t.Parallel()
	rig.Label(t)
	const ttl, each, renewals = 5 * time.Second, 4, 4 // more than a TTL
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	direct := cluster.Members[0].Client(t)
	proxies := rig.NewProxies(t, cluster.Endpoints())

	var control []*stockSession
	for range 2 * each {
		control = append(control, newStockSession(t, proxies, ttl))
	}
	var holders []*sickHolder
	var sessions []*lease.Session
	var names []string
	for _, way := range rig.Ways {
		for i := range each {
			h := newSickHolder(t, proxies, way, fmt.Sprint(way.Name, i), ttl)
			holders, sessions, names = append(holders, h), append(sessions, h.session), append(names, h.name)
		}
	}
	// Each session also waits for the next one's name, through the same proxies.
	for i, h := range holders {
		h.waiter = holders[(i+1)%len(holders)].goTake(rig.Bounded(t), h)
	}
	for _, h := range holders {
		rig.AwaitQueue(t, direct, h.name, 2)
	}

	// gRPC chooses at random where a session renews. Kill an endpoint that carries renewals of ours and of etcd's
	// sessions.
	ours, theirs := map[string]int{}, map[string]int{}
	for _, s := range control {
		theirs[s.carrier]++
	}
	for _, h := range holders {
		ours[rig.Await(t, h.renewals.addrs, "no renewal is sent")]++
		h.answered = h.line.In.Answered(faults.LeaseKeepAlive)
	}
	dead := slices.MaxFunc(proxies, func(a, b *faults.Proxy) int {
		return cmp.Compare(min(ours[a.Addr()], theirs[a.Addr()]), min(ours[b.Addr()], theirs[b.Addr()]))
	})
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
	t.Logf("%d renewals were not answered", unanswered)
	lost := 0
	for _, s := range control {
		if s.carrier == dead.Addr() {
			rig.Await(t, s.session.Done(), "etcd's own session survives the endpoint that carries its renewals")
			lost++
		}
	}
	t.Logf("lost: %d of %d of etcd's own sessions, none of ours", lost, len(control))
	require.Positive(t, lost, "no session of etcd's own was lost: the test proves nothing")

	began := time.Now()
	freed := make(chan error)
	for _, h := range holders {
		ctx := rig.Bounded(t)
		go func() { freed <- h.hold.Free(ctx) }()
	}
	for range holders {
		require.NoError(t, <-freed)
	}
	for _, h := range holders {
		require.NoError(t, rig.Await(t, h.waiter, "a waiter was not served"))
	}
	t.Logf("all waiters were served after %v", time.Since(began))
	for _, p := range proxies {
		p.Restore()
	}
	for _, s := range control {
		_ = s.session.Close() // fails if the session is lost
	}
	for _, h := range holders {
		require.Equal(t, h.id, h.session.Status().LeaseID)
		h.witness.Check(t, 2)
	}
	rig.CloseAll(t, direct, sessions, names...)
}

// sickHolder is a session with a hold; one of its endpoints will be dead.
type sickHolder struct {
	way     rig.Way
	name    string
	line    *rig.Line
	session *lease.Session
	id      clientv3.LeaseID
	hold    *rig.Hold
	waiter  <-chan error // receives the result of the waiter behind hold

	renewals carriers
	answered int // renewals answered before the endpoint died
	witness  rig.Witness
}

func newSickHolder(t *testing.T, proxies []*faults.Proxy, way rig.Way, name string, ttl time.Duration) *sickHolder {
	t.Helper()
	h := &sickHolder{way: way, name: name, renewals: newCarriers(faults.LeaseKeepAlive)}
	h.line = rig.Over(t, proxies, h.renewals.option())
	h.session = rig.NewSession(t, h.line.Client, lease.Options{TTL: ttl})
	h.id = h.session.Status().LeaseID
	h.hold = way.MustTake(t, h.session, name)
	h.witness.Follow(h.hold)
	return h
}

// goTake starts to wait for the name of another holder, and releases it as soon as it is granted.
func (h *sickHolder) goTake(ctx context.Context, of *sickHolder) <-chan error {
	result := make(chan error, 1)
	go func() {
		next, err := of.way.Take(ctx, h.session, of.name)
		if err == nil {
			of.witness.Follow(next)
			err = next.Free(ctx)
		}
		result <- err
	}()
	return result
}

// stockSession is a session of etcd's own package concurrency.
type stockSession struct {
	session *concurrency.Session
	carrier string // the address that its renewals go to
}

func newStockSession(t *testing.T, proxies []*faults.Proxy, ttl time.Duration) *stockSession {
	t.Helper()
	renewals := newCarriers(faults.LeaseKeepAlive)
	line := rig.Over(t, proxies, renewals.option())
	s, err := concurrency.NewSession(line.Client, concurrency.WithTTL(int(ttl/time.Second)))
	require.NoError(t, err)
	return &stockSession{s, rig.Await(t, renewals.addrs, "no renewal is sent")}
}

// A watch through a black-holed endpoint falls silent. As soon as a renewal stays unanswered, the session opens the
// watch at another endpoint, so a waiter still gets its turn, and a holder still learns that its key was deleted. The
// endpoint stays black-holed until the end of each sub-test.
func TestLock_watchLeavesASickEndpoint(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	direct := cluster.Client(t)
	sound := rig.NewSession(t, direct, lease.Options{})
	t.Run("waiter", func(t *testing.T) {
		t.Parallel()
		line := newSickLine(t, cluster.Endpoints())
		held := rig.MustLock(t, sound, "waited for")
		s := line.session(t)
		granted := make(chan error, 1)
		ctx := rig.Bounded(t)
		go func() {
			_, err := s.Lock(ctx, "waited for")
			granted <- err
		}()
		// One watch for the predecessor's key, one for its own.
		require.NoError(t, line.In.AwaitAnswered(ctx, faults.Watch, 2))
		line.carrier(t).BlackHole()
		require.NoError(t, held.Unlock(ctx))
		require.NoError(t, rig.Await(t, granted, "the waiter was not served"))
	})
	t.Run("holder", func(t *testing.T) {
		t.Parallel()
		line := newSickLine(t, cluster.Endpoints()[:2])
		l := rig.MustLock(t, line.session(t), "held")
		line.carrier(t).BlackHole()
		_, err := direct.Delete(rig.Bounded(t), l.Key())
		require.NoError(t, err)
		rig.RequireLost(t, rig.AwaitEnd(t, l.Context()), lease.ReasonKeyDeleted)
	})
}

// sickLine is a client whose watches go through an endpoint that will be black-holed.
type sickLine struct {
	*rig.Line
	watches carriers
}

func newSickLine(t *testing.T, endpoints []string) *sickLine {
	t.Helper()
	watches := newCarriers(faults.Watch)
	return &sickLine{rig.NewLine(t, endpoints, watches.option()), watches}
}

// session returns a session whose renewals are further apart than the longest backoff of a watch. So a watch that were
// always opened at the sick endpoint, in step with the renewals, would get out of step with them.
func (l *sickLine) session(t *testing.T) *lease.Session {
	t.Helper()
	return rig.NewSession(t, l.Client, lease.Options{TTL: 4 * time.Second})
}

// carrier waits for the next watch stream and returns its proxy.
func (l *sickLine) carrier(t *testing.T) *faults.Proxy {
	t.Helper()
	addr := rig.Await(t, l.watches.addrs, "no stream is opened")
	i := slices.IndexFunc(l.Proxies, func(p *faults.Proxy) bool { return p.Addr() == addr })
	require.GreaterOrEqual(t, i, 0, addr)
	return l.Proxies[i]
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
