package integration_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
)

var noLeader = election.Leader{}

// onlooker observes in a goroutine, and keeps up.
type onlooker struct {
	seen chan election.Leader
	end  chan struct{} // closed when the iteration has ended
	err  error         // what it ended with
	stop context.CancelFunc
}

func observe(t *testing.T, client *clientv3.Client, name string) *onlooker {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	o := &onlooker{seen: make(chan election.Leader, 100000), end: make(chan struct{}), stop: cancel}
	go func() {
		defer close(o.end)
		for l, err := range election.Observe(ctx, client, name) {
			if err != nil {
				o.err = err
				continue // it must have been the last
			}
			o.seen <- l
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-o.end
	})
	return o
}

// next waits for what is seen next.
func (o *onlooker) next(t *testing.T) election.Leader {
	t.Helper()
	select {
	case l := <-o.seen:
		return l
	case <-o.end:
		require.FailNow(t, "the iteration has ended", "with %v", o.err)
	case <-time.After(patience):
		require.FailNow(t, "nothing is seen")
	}
	return noLeader
}

// sees checks what is seen next, all of it and in order.
func (o *onlooker) sees(t *testing.T, want ...election.Leader) {
	t.Helper()
	for i, w := range want {
		require.Equal(t, w, o.next(t), "number %d", i)
	}
}

// seesAtLast waits until the leader is seen, whatever else is before, and checks that tokens have only grown.
func (o *onlooker) seesAtLast(t *testing.T, want election.Leader) {
	t.Helper()
	highest := fence.Token(0)
	for l := noLeader; l != want; {
		l = o.next(t)
		if !l.None() {
			require.GreaterOrEqual(t, l.Token, highest)
			highest = l.Token
		}
	}
}

// seesNoMore checks that nothing more is seen than was asked for: the last was seen at most once.
func (o *onlooker) seesNoMore(t *testing.T) {
	t.Helper()
	require.Empty(t, o.seen)
}

// ended waits for the end and returns the error.
func (o *onlooker) ended(t *testing.T) error {
	t.Helper()
	awaitClosed(t, o.end, "the iteration goes on")
	return o.err
}

// stand writes a key on a lease, as candidates do, and returns who it makes, as others see it.
func stand(t *testing.T, client *clientv3.Client, key, value string, lease clientv3.LeaseID) election.Leader {
	t.Helper()
	resp, err := client.Put(bounded(t), key, value, clientv3.WithLease(lease), clientv3.WithPrevKV())
	require.NoError(t, err)
	created := resp.Header.Revision
	if resp.PrevKv != nil {
		created = resp.PrevKv.CreateRevision
	}
	return election.Leader{Value: value, Token: fence.Token(created), Key: key, Lease: lease}
}

// role is a name that candidates take turns on, one after the other, and all that observers are to see of it.
type role struct {
	client *clientv3.Client
	name   string
	lease  clientv3.LeaseID
	n      int
	l      election.Leader // who leads, or nobody
}

func newRole(t *testing.T, client *clientv3.Client, name string) *role {
	t.Helper()
	granted, err := client.Grant(bounded(t), 3600)
	require.NoError(t, err)
	return &role{client: client, name: name, lease: granted.ID}
}

// turns has n candidates lead, with two values each and with nobody after them, and returns what is to be seen.
func (r *role) turns(t *testing.T, n int) []election.Leader {
	t.Helper()
	var all []election.Leader
	for range n {
		all = append(all, r.leads(t), r.proclaims(t, "another value"), r.leaves(t))
	}
	return all
}

func (r *role) leads(t *testing.T) election.Leader {
	t.Helper()
	r.n++
	r.l = stand(t, r.client, fmt.Sprintf("%s/%s-%d", r.name, hexOf(r.lease), r.n), "value", r.lease)
	return r.l
}

func (r *role) proclaims(t *testing.T, value string) election.Leader {
	t.Helper()
	r.l = stand(t, r.client, r.l.Key, value, r.lease)
	return r.l
}

func (r *role) leaves(t *testing.T) election.Leader {
	t.Helper()
	_, err := r.client.Delete(bounded(t), r.l.Key)
	require.NoError(t, err)
	r.l = noLeader
	return r.l
}

// Every change is seen, in order, by everybody who watches by then.
func TestObserve_seesEveryChange(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	r := newRole(t, srv.Client(t), "n")
	early := observe(t, client, "n")
	early.sees(t, noLeader)
	want := append(r.turns(t, 34), r.leads(t))
	early.sees(t, want...)
	late, other := observe(t, client, "n"), observe(t, srv.Client(t), "n")
	late.sees(t, r.l)
	other.sees(t, r.l)
	want = append([]election.Leader{r.leaves(t)}, r.turns(t, 34)...)
	for _, o := range []*onlooker{early, late, other} {
		o.sees(t, want...)
		o.seesNoMore(t)
	}
	_, err := election.Current(bounded(t), client, "n")
	require.ErrorIs(t, err, election.ErrNoLeader)
}

// Whoever joins sees no older state than was true by then, while the leader changes all the time.
func TestObserve_joinersSeeThePresent(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	r := newRole(t, srv.Client(t), "n")
	base := observe(t, client, "n")
	base.sees(t, noLeader)
	var joined []*onlooker
	for range 100 {
		l := r.leads(t)
		o := observe(t, client, "n")
		first := o.next(t)
		require.Equal(t, l, first)
		joined = append(joined, o)
		r.leaves(t)
	}
	last := r.leads(t)
	for _, o := range append(joined, base) {
		o.seesAtLast(t, last)
		o.seesNoMore(t)
	}
}

// All observers of a name in a process share one watch, which goes with the last of them.
func TestObserve_sharesOneWatch(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	in := faults.NewInterceptor(t)
	client := srv.Client(t, etcdtest.Dial(in.DialOptions()...))
	sent := countTraffic(in)
	r := newRole(t, srv.Client(t), "n")
	l := r.leads(t)
	var all []*onlooker
	for range 50 {
		all = append(all, observe(t, client, "n"))
	}
	for _, o := range all {
		o.sees(t, l)
	}
	requireOneWatch := func() {
		t.Helper()
		// A probe is one more, for a moment.
		require.Eventually(t, func() bool { return sent.watches.Load() == 1 }, patience, time.Millisecond)
	}
	requireOneWatch()
	require.LessOrEqual(t, sent.requests.Load(), int64(1+50+2), "a watch, a read for each and perhaps a probe")
	last := r.leaves(t)
	for _, o := range all {
		o.sees(t, last)
		o.seesNoMore(t)
	}
	for _, o := range all[1:] {
		o.stop()
		require.NoError(t, o.ended(t))
	}
	last = r.leads(t)
	all[0].sees(t, last)
	requireOneWatch()
}

// A thousand candidates cost an observer no more than one.
func TestObserve_aThousandCandidates(t *testing.T) {
	t.Parallel()
	const candidates = 1000
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	granted, err := client.Grant(bounded(t), 3600)
	require.NoError(t, err)
	var want []election.Leader
	for i := range candidates {
		want = append(want, stand(t, client, fmt.Sprintf("n/%s-%d", hexOf(granted.ID), 9999-i), strconv.Itoa(i), granted.ID))
	}
	all, err := election.Candidates(bounded(t), client, "n")
	require.NoError(t, err)
	require.Equal(t, want, all)

	in := faults.NewInterceptor(t)
	observer := srv.Client(t, etcdtest.Dial(in.DialOptions()...))
	o := observe(t, observer, "n")
	o.sees(t, want[0])
	for _, l := range want {
		_, err := client.Delete(bounded(t), l.Key)
		require.NoError(t, err)
	}
	o.sees(t, append(want[1:], noLeader)...)
	require.Equal(t, 1, in.Sent(faults.Range), "one read, and events after it")
}

// A consumer that is busy is taken to the latest when it is back.
func TestObserve_slowConsumer(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	r := newRole(t, srv.Client(t), "n")
	fast := observe(t, client, "n")
	fast.sees(t, noLeader)
	seen := 0
	for l, err := range election.Observe(bounded(t), client, "n") {
		require.NoError(t, err)
		seen++
		if seen == 1 {
			fast.sees(t, r.turns(t, 100)...)
			fast.sees(t, r.leads(t)) // the hub has told all of it
			continue
		}
		require.Equal(t, r.l, l)
		break
	}
	require.Equal(t, 2, seen)
}
