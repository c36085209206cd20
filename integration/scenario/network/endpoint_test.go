package network_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/scenario/rig"
	"github.com/leasefence/leasefence/lease"
)

// One of three endpoints is dead: it accepts connections and says nothing. None of our sessions loses its lease, and none of
// the holders its hold, while etcd's own sessions whose renewals happen to go there are lost: a third of them. Whoever
// waits is served all the same.
func TestNetwork_oneOfThreeEndpointsDead(t *testing.T) {
	t.Parallel()
	rig.Label(t)
	const ttl, each, renewals = 5 * time.Second, 5, 6 // two TTLs
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	direct := cluster.Members[0].Client(t)
	proxies := rig.NewProxies(t, cluster.Endpoints())

	var control []*stockSession
	for range 2 * each {
		control = append(control, newStockSession(t, proxies, ttl))
	}
	dead := busiest(control)
	var holders []*sickHolder
	var sessions []*lease.Session
	var names []string
	for _, way := range rig.Ways {
		for i := range each {
			h := newSickHolder(t, proxies, way, fmt.Sprint(way.Name, i), ttl)
			holders, sessions, names = append(holders, h), append(sessions, h.session), append(names, h.name)
		}
	}
	// Each waits for the next one's name, on a line that is as sick.
	for i, h := range holders {
		h.waiter = holders[(i+1)%len(holders)].goTake(rig.Bounded(t), h)
	}
	for _, h := range holders {
		rig.AwaitQueue(t, direct, h.name, 2)
	}

	for _, h := range holders {
		h.answered = h.line.In.Answered(faults.LeaseKeepAlive)
	}
	for _, p := range proxies {
		if p.Addr() == dead {
			p.BlackHole()
		}
	}
	unanswered := 0
	for _, h := range holders {
		in := h.line.In
		require.NoError(t, in.AwaitAnswered(rig.Bounded(t), faults.LeaseKeepAlive, h.answered+renewals))
		require.NoError(t, h.hold.Err())
		require.Equal(t, h.id, h.session.Status().LeaseID)
		unanswered += in.Sent(faults.LeaseKeepAlive) - in.Answered(faults.LeaseKeepAlive)
	}
	require.Greater(t, unanswered, len(holders), "the dead endpoint was not asked")
	lost := 0
	for _, s := range control {
		if s.carrier == dead {
			rig.Await(t, s.session.Done(), "etcd's own session outlives the endpoint that carries its renewals")
			lost++
		}
	}
	t.Logf("lost: %d of %d of etcd's own sessions, none of ours", lost, len(control))
	require.Positive(t, lost, "the dead endpoint harms nobody: it proves nothing")

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
	t.Logf("all waiters are served after %v", time.Since(began))
	for _, p := range proxies {
		p.Restore()
	}
	for _, s := range control {
		_ = s.session.Close() // it may have been lost
	}
	for _, h := range holders {
		require.Equal(t, h.id, h.session.Status().LeaseID)
		h.witness.Check(t, 2)
	}
	rig.CloseAll(t, direct, sessions, names...)
}

// sickHolder is a session one of whose endpoints will be dead, and what it holds.
type sickHolder struct {
	way     rig.Way
	name    string
	line    *rig.Line
	session *lease.Session
	id      clientv3.LeaseID
	hold    *rig.Hold
	waiter  <-chan error // gets the outcome of the one who waits behind

	answered int // renewals, before the endpoint died
	witness  rig.Witness
}

func newSickHolder(t *testing.T, proxies []*faults.Proxy, way rig.Way, name string, ttl time.Duration) *sickHolder {
	t.Helper()
	h := &sickHolder{way: way, name: name, line: rig.Over(t, proxies)}
	h.session = rig.NewSession(t, h.line.Client, lease.Options{TTL: ttl})
	h.id = h.session.Status().LeaseID
	var err error
	h.hold, err = way.Take(rig.Bounded(t), h.session, name)
	require.NoError(t, err)
	h.witness.Follow(h.hold)
	return h
}

// goTake begins to wait for another's name and lets it go as soon as it has it.
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

// stockSession is one of etcd's own.
type stockSession struct {
	session *concurrency.Session
	carrier string // the address that its renewals go to
}

func newStockSession(t *testing.T, proxies []*faults.Proxy, ttl time.Duration) *stockSession {
	t.Helper()
	carriers := make(chan string, 100)
	line := rig.Over(t, proxies, grpc.WithStatsHandler(renewalCarriers{carriers}))
	s, err := concurrency.NewSession(line.Client, concurrency.WithTTL(int(ttl/time.Second)))
	require.NoError(t, err)
	return &stockSession{s, rig.Await(t, carriers, "no renewal is sent")}
}

// busiest is the address that carries most sessions' renewals.
func busiest(sessions []*stockSession) string {
	count := map[string]int{}
	most := ""
	for _, s := range sessions {
		if count[s.carrier]++; count[s.carrier] > count[most] {
			most = s.carrier
		}
	}
	return most
}

// renewalCarriers tells at which address each stream of renewals is opened: gRPC chooses, and says so only here.
type renewalCarriers struct{ addrs chan<- string }

func (r renewalCarriers) HandleRPC(_ context.Context, s stats.RPCStats) {
	if out, ok := s.(*stats.OutHeader); ok && out.FullMethod == faults.LeaseKeepAlive {
		r.addrs <- out.RemoteAddr.String()
	}
}

func (renewalCarriers) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (renewalCarriers) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (renewalCarriers) HandleConn(context.Context, stats.ConnStats) {}
