package integration_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
)

// TestObserve_cutOff is pain 27: who is cut off for longer than several changes sees them all when it is back, in order.
func TestObserve_cutOff(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(*faults.Proxy){
		"black hole": (*faults.Proxy).BlackHole,
		"no answers": func(p *faults.Proxy) { p.Answers.Hold() },
		"bytes lost": func(p *faults.Proxy) { p.Answers.Drop(); p.Requests.Drop() },
		"refused":    (*faults.Proxy).Refuse,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := etcdtest.Start(t, etcdtest.Options{})
			proxy, in := faults.NewProxy(t, srv.Endpoint()), faults.NewInterceptor(t)
			client := srv.Client(t, etcdtest.Via(proxy.Addr()), etcdtest.Dial(in.DialOptions()...))
			r := newRole(t, srv.Client(t), "n")
			first := r.leads(t)
			o := observe(t, client, "n")
			o.sees(t, first)
			for range 2 {
				cut(proxy)
				want := append([]election.Leader{r.leaves(t)}, r.turns(t, 5)...)
				want = append(want, r.leads(t))
				if name != "refused" {
					// It has found out, and asked for another stream.
					require.NoError(t, in.AwaitSent(bounded(t), faults.Watch, in.Sent(faults.Watch)+2))
				}
				want = append(want, r.proclaims(t, "the last"))
				o.seesNoMore(t)
				proxy.Restore()
				o.sees(t, want...)
				o.seesNoMore(t)
			}
		})
	}
}

// Pain 24, 27: a member that is cut off for good is left, for as many observers as there are.
func TestObserve_leavesASickEndpoint(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	link := newClusterLink(t, newClusterProxies(t, cluster))
	r, other := newRole(t, cluster.Client(t), "n"), newRole(t, cluster.Client(t), "m")
	a, b, c := observe(t, link.client, "n"), observe(t, link.client, "n"), observe(t, link.client, "m")
	for _, o := range []*onlooker{a, b, c} {
		o.sees(t, noLeader)
	}
	link.carrier(t).BlackHole()
	began := time.Now()
	want := append(r.turns(t, 3), r.leads(t))
	a.sees(t, want...)
	b.sees(t, want...)
	t.Logf("left after %v", time.Since(began))
	c.sees(t, other.leads(t))
	joined := observe(t, link.client, "n")
	joined.sees(t, r.l)
	last := r.proclaims(t, "later")
	for _, o := range []*onlooker{a, b, joined} {
		o.sees(t, last)
		o.seesNoMore(t)
	}
}

// Members go down and come back, the one that serves the watch and the leader among them. Nothing is missed.
func TestObserve_membersAreLost(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	r := newRole(t, cluster.Client(t), "n")
	client := cluster.Client(t)
	o := observe(t, client, "n")
	o.sees(t, noLeader)
	for _, m := range cluster.Members {
		m.Crash()
		cluster.NextLeader(t, m)
		want := append(r.turns(t, 3), r.leads(t), r.leaves(t))
		o.sees(t, want...)
		joined := observe(t, client, "n")
		joined.sees(t, noLeader)
		m.Restart(t)
	}
	o.seesNoMore(t)
}

// Without a majority nobody knows who leads, so the leader that was seen last stays. With it back, changes go on.
func TestObserve_noMajority(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	client, own := cluster.Client(t), cluster.Client(t)
	r := newRole(t, own, "n")
	o := observe(t, client, "n")
	o.sees(t, noLeader)
	want := r.leads(t)
	o.sees(t, want)
	for _, m := range cluster.Members[1:] {
		m.Crash()
	}
	cluster.Members[0].AwaitNoLeader(t)
	joined := observe(t, client, "n")
	joined.seesNoMore(t)
	cluster.Members[1].Restart(t)
	joined.sees(t, want)
	changes := append([]election.Leader{r.leaves(t)}, r.turns(t, 3)...)
	for _, o := range []*onlooker{o, joined} {
		o.sees(t, changes...)
		o.seesNoMore(t)
	}
}

// A member without a leader serves reads and watches no more. It is left while it is isolated.
func TestObserve_isolatedMember(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.StartCluster(t, 3, etcdtest.Options{})
	r := newRole(t, cluster.Client(t), "n")
	link := newClusterLink(t, newClusterProxies(t, cluster))
	o := observe(t, link.client, "n")
	o.sees(t, noLeader)
	carrier := link.carrier(t)
	member := cluster.Members[slices.Index(link.proxies, carrier)]
	cluster.Isolate(t, member)
	member.AwaitNoLeader(t)
	cluster.NextLeader(t, member)
	r.client = etcdtest.NewClient(t, slices.DeleteFunc(cluster.Endpoints(), func(e string) bool { return e == member.Endpoint() }))
	want := append(r.turns(t, 3), r.leads(t))
	o.sees(t, want...)

	// What the member holds for true is old, and it does not say it.
	cut := etcdtest.NewClient(t, []string{member.Endpoint()})
	for _, ask := range []func(context.Context) error{
		func(ctx context.Context) error { _, err := election.Current(ctx, cut, "n"); return err },
		func(ctx context.Context) error { _, err := election.Candidates(ctx, cut, "n"); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		require.ErrorIs(t, ask(ctx), context.DeadlineExceeded)
		cancel()
	}
	joined := observe(t, cut, "n")
	joined.seesNoMore(t)

	cluster.Heal(t, member)
	joined.sees(t, r.l)
	o.sees(t, r.leaves(t))
	o.seesNoMore(t)
}

// What was compacted meanwhile is not seen. What is true then is.
func TestObserve_compactedWhileCutOff(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	proxy := faults.NewProxy(t, srv.Endpoint())
	client := srv.Client(t, etcdtest.Via(proxy.Addr()))
	r := newRole(t, srv.Client(t), "n")
	a, b := observe(t, client, "n"), observe(t, client, "n")
	a.sees(t, noLeader)
	b.sees(t, noLeader)
	for range 3 {
		first := r.leads(t)
		a.sees(t, first)
		b.sees(t, first)
		proxy.Refuse()
		r.leaves(t)
		r.turns(t, 10)
		last := r.leads(t)
		srv.Compact(t)
		proxy.Restore()
		a.sees(t, last)
		b.sees(t, last)
		last = r.leaves(t)
		a.sees(t, last)
		b.sees(t, last)
	}
	a.seesNoMore(t)
	b.seesNoMore(t)
}

// A cluster that was restored from a snapshot has smaller revisions. What is true there is seen nevertheless.
func TestObserve_revisionsMoveBack(t *testing.T) {
	t.Parallel()
	old, restored := etcdtest.Start(t, etcdtest.Options{}), etcdtest.Start(t, etcdtest.Options{})
	client := old.Client(t)
	r := newRole(t, old.Client(t), "n")
	a, b := observe(t, client, "n"), observe(t, client, "n")
	a.sees(t, noLeader)
	want := append(r.turns(t, 20), r.leads(t))
	a.sees(t, want...)
	b.seesAtLast(t, r.l)

	again := newRole(t, restored.Client(t), "n")
	l := again.leads(t)
	require.Less(t, l.Token, want[0].Token+2)
	client.SetEndpoints(restored.Endpoint())
	old.Crash()
	a.sees(t, l)
	b.sees(t, l)
	joined := observe(t, client, "n")
	joined.sees(t, l)
	changes := append([]election.Leader{again.leaves(t)}, again.turns(t, 3)...)
	for _, o := range []*onlooker{a, b, joined} {
		o.sees(t, changes...)
		o.seesNoMore(t)
	}
}

// Watches that are refused by the server for a while, or broken as soon as they exist, do not cost a change.
func TestObserve_watchesFail(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	in := faults.NewInterceptor(t)
	client := srv.Client(t, etcdtest.Dial(in.DialOptions()...))
	r := newRole(t, srv.Client(t), "n")
	o := observe(t, client, "n")
	o.sees(t, noLeader)
	for range 3 {
		// The event is lost with its stream; and so is the first attempt to open the watch again, in silence.
		event := in.Inject(t, faults.Rule{Fault: faults.LoseAnswer, Method: faults.Watch, Match: isEvents, Times: 1})
		create := in.Inject(t, faults.Rule{Fault: faults.LoseRequest, Method: faults.Watch, Match: isCreate, Times: 1, Silent: true})
		want := append(r.turns(t, 3), r.leads(t), r.leaves(t))
		awaitClosed(t, event.Hit(), "no event was lost")
		awaitClosed(t, create.Hit(), "the watch was not opened again")
		o.sees(t, want...)
	}
	o.seesNoMore(t)
}

func isEvents(message any) bool {
	resp, ok := message.(*etcdserverpb.WatchResponse)
	return ok && len(resp.Events) > 0
}

func isCreate(message any) bool {
	req, ok := message.(*etcdserverpb.WatchRequest)
	return ok && req.GetCreateRequest() != nil
}
