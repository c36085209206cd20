package election_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// standsBy starts a Run that leads until it has to stop.
func (p *process) standsBy(t *testing.T, opts election.Options) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	runs := inBackground(func() error {
		return election.Run(ctx, p.s, "x", opts, func(ctx context.Context, _ fence.Token) error {
			<-ctx.Done()
			return errMine
		})
	})
	t.Cleanup(func() { cancel(); <-runs.done })
	synctest.Wait()
}

// A leader hands over to a candidate of a higher priority that has waited for a second, with nobody in between, and
// campaigns again. A leader that dies is followed by the next in the queue, which hands over too.
func TestRun_priority(t *testing.T) {
	for name, tc := range map[string]struct {
		priorities    []int
		before, after []string // the first leader's death
	}{
		"none":            {[]int{0, 0, 0}, []string{"a"}, []string{"b"}},
		"equals":          {[]int{3, 3, 3}, []string{"a"}, []string{"b"}},
		"lower":           {[]int{9, 1, 2}, []string{"a"}, []string{"b", "c"}},
		"next":            {[]int{0, 5}, []string{"a", "b"}, []string{"a"}},
		"past others":     {[]int{0, 0, 1, 5, 3}, []string{"a", "d"}, []string{"e"}},
		"the highest":     {[]int{0, 1, 2, 3}, []string{"a", "d"}, nil},
		"the next is one": {[]int{0, 5, 5, 5}, []string{"a", "b"}, []string{"c"}},
	} {
		inBubble(t, name, func(t *testing.T) {
			srv := newServer(t)
			var list []*process
			for i, priority := range tc.priorities {
				list = append(list, newProcess(t, srv, lease.Options{}))
				list[i].standsBy(t, election.Options{Value: string(rune('a' + i)), Priority: priority})
			}
			time.Sleep(990 * time.Millisecond)
			require.Equal(t, "a", values(srv)[0])
			time.Sleep(20 * time.Millisecond)
			last := tc.before[len(tc.before)-1]
			require.Equal(t, last, values(srv)[0])
			time.Sleep(time.Minute)
			require.Len(t, values(srv), len(list))
			list[last[0]-'a'].c.Cut()
			time.Sleep(time.Minute)
			if tc.after != nil { // otherwise it depends on the order in which the passed candidates entered again
				requireReigns(t, srv, append(tc.before, tc.after...)...)
			}
			list[last[0]-'a'].c.Restore()
		})
	}
}

// A lock before a preferred candidate keeps its place. The leader prefers a candidate before the lock meanwhile, and that
// one hands over when the lock has gone, for which it looks seldom.
func TestRun_priority_behindALock(t *testing.T) {
	bubble(t, func(t *testing.T, p *process) {
		p.join(t).standsBy(t, election.Options{Value: "a"})
		locks := p.join(t)
		p.standsBy(t, election.Options{Value: "b", Priority: 1})
		go func() { _, _ = locks.s.Lock(timeout(t, time.Hour, nil), "x") }()
		synctest.Wait()
		p.join(t).standsBy(t, election.Options{Value: "c", Priority: 5})
		time.Sleep(time.Minute)
		require.Equal(t, "b", values(p.srv)[0])
		before := requests(p)
		time.Sleep(30 * time.Minute)
		require.LessOrEqual(t, requests(p)-before, 2*int(30*time.Minute/(attempt/2)), "two for each look")
		time.Sleep(30 * time.Minute)
		requireReigns(t, p.srv, "a", "b", "c")
	})
}

// requests counts all requests except renewals and the watches by which a session probes its stream.
func requests(p *process) int {
	n := 0
	for _, call := range p.c.Calls(fakeetcd.Any) {
		watch, _ := call.Request.(*pb.WatchCreateRequest)
		if call.Method != fakeetcd.KeepAliveOnce && len(watch.GetFilters()) == 0 {
			n++
		}
	}
	return n
}

// A preferred candidate costs the others nothing if it waits for less than a second, however often it comes. If it
// stays, it costs each of them a few requests, once.
func TestRun_priority_costs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const others = 20
		srv := newServer(t)
		list := make([]*process, others)
		for i := range list {
			list[i] = newProcess(t, srv, lease.Options{})
			list[i].standsBy(t, election.Options{Value: fmt.Sprint(i)})
		}
		time.Sleep(time.Minute)
		all := func() int {
			sum := 0
			for _, p := range list {
				sum += requests(p)
			}
			return sum
		}
		before := all()
		high := newProcess(t, srv, lease.Options{})
		for range 10 {
			c := high.campaign(timeout(t, 900*time.Millisecond, errEnough), election.Options{Priority: 1})
			time.Sleep(time.Minute)
			require.ErrorIs(t, c.failed(t), errEnough)
		}
		require.Equal(t, before, all())

		high.standsBy(t, election.Options{Value: "high", Priority: 1})
		time.Sleep(time.Minute)
		require.Equal(t, "high", values(srv)[0])
		cost := all() - before
		require.LessOrEqual(t, cost, 8*others)
		time.Sleep(time.Hour)
		require.Equal(t, cost, all()-before)

		high.c.Cut() // the next in the queue leads, and nobody is preferred
		time.Sleep(time.Minute)
		require.LessOrEqual(t, all()-before-cost, 8)
		high.c.Restore()
	})
}

// What etcd refuses is tried again, seldom, and reported now and then: priorities count again when it is allowed again.
func TestCampaign_priority_refusedForAWhile(t *testing.T) {
	for name, tc := range map[string]struct {
		asking bool // the fault is the asking candidate's, not the leader's
		method fakeetcd.Method
		match  func(fakeetcd.Call) bool
	}{
		"the leader's look":               {false, fakeetcd.Get, nil},
		"the candidate's look":            {true, fakeetcd.Get, nil},
		"the candidate's request to lead": {true, fakeetcd.Txn, asks},
	} {
		inBubble(t, name, func(t *testing.T) {
			srv := newServer(t)
			var log bytes.Buffer
			opts := lease.Options{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))}
			p, locks, high := newProcess(t, srv, opts), newProcess(t, srv, lease.Options{}), newProcess(t, srv, opts)
			l := p.leads(t, election.Options{Value: "a"})
			ctx, giveUp := context.WithCancel(t.Context())
			defer giveUp()
			go func() { _, _ = locks.s.Lock(ctx, "x") }()
			synctest.Wait()
			c := high.campaign(t.Context(), election.Options{Value: "b", Priority: 1})
			synctest.Wait()
			if tc.asking {
				p = high
			}
			restore := p.c.Inject(tc.method, fakeetcd.Fault{Match: tc.match, Err: rpctypes.ErrGRPCPermissionDenied})
			before := requests(p)
			time.Sleep(time.Hour)
			synctest.Wait()
			require.NotZero(t, log.Len())
			require.LessOrEqual(t, bytes.Count(log.Bytes(), []byte("\n")), 61, "lines")
			require.LessOrEqual(t, requests(p)-before, 4*int(time.Hour/(attempt/2)), "requests")
			require.NoError(t, l.Err())

			restore()
			giveUp()
			time.Sleep(2 * attempt)
			require.ErrorIs(t, l.Err(), election.ErrHandedOver)
			require.NoError(t, l.Resign(t.Context()))
			require.NoError(t, c.won(t).Resign(t.Context()))
		})
	}
}

// To ask for the leadership, a candidate writes the key of a leader of lower priority, and no other key. A late request
// writes nothing if the leader or the candidate has gone.
func TestCampaign_asks(t *testing.T) {
	const priority = 2
	for name, tc := range map[string]struct {
		first int // its priority, -1: a lock
		late  func(srv *fakeetcd.Server)
		asked bool
	}{
		"a lower one leads":                 {first: 1, asked: true},
		"an equal one leads":                {first: 2},
		"a higher one leads":                {first: 3},
		"a lock is held":                    {first: -1},
		"the leader has gone when it comes": {first: 1, late: func(srv *fakeetcd.Server) { srv.Delete(key(srv, "a")) }},
		"the asking one has gone by then":   {first: 1, late: func(srv *fakeetcd.Server) { srv.Delete(key(srv, "c")) }},
		"another's key is there by then":    {first: 1, late: func(srv *fakeetcd.Server) { k := key(srv, "a"); srv.Delete(k); srv.Put(k, "a") }},
		"it comes late, and both are there": {first: 1, late: func(*fakeetcd.Server) {}, asked: true},
	} {
		inBubble(t, name, func(t *testing.T) {
			srv := newServer(t)
			first := newProcess(t, srv, lease.Options{Owner: "a"})
			if tc.first < 0 {
				_, err := first.s.Lock(t.Context(), "x")
				require.NoError(t, err)
			} else {
				first.leads(t, election.Options{Value: "a", Priority: tc.first, KeepLead: true})
			}
			newProcess(t, srv, lease.Options{}).campaign(t.Context(), election.Options{Value: "b", KeepLead: true})
			synctest.Wait()
			p := newProcess(t, srv, lease.Options{})
			if tc.late != nil {
				p.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Match: asks, Before: time.Second, Late: true})
			}
			p.campaign(t.Context(), election.Options{Value: "c", Priority: priority})
			time.Sleep(1500 * time.Millisecond)
			if tc.late != nil {
				require.True(t, slices.ContainsFunc(p.c.Calls(fakeetcd.Txn), asks))
				tc.late(srv)
			}
			time.Sleep(900 * time.Millisecond) // not until a candidate that has entered again asks
			for _, kv := range srv.Keys("x/") {
				asked := tc.asked && string(kv.Value) == "a"
				require.Equal(t, asked, kv.ModRevision != kv.CreateRevision, string(kv.Key))
			}
		})
	}
}
