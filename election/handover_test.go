package election_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// Something happens to the keys or to the requests of a transfer to c, or to b. While etcd is out of space it refuses
// writes and still deletes keys: nobody can be passed then.
func TestLeadership_Transfer_meetsAFault(t *testing.T) {
	type faults func(*testing.T, *lineup) []fakeetcd.Fault
	inject := func(list ...fakeetcd.Fault) faults { return func(*testing.T, *lineup) []fakeetcd.Fault { return list } }
	full := fakeetcd.Fault{Match: asks, Err: rpctypes.ErrGRPCNoSpace}
	asked := fakeetcd.Fault{Times: 1, Match: asks, Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable}
	left := fakeetcd.Fault{Times: 1, Match: leaves, Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable}
	// atLast does something while the request that hands over is on its way.
	atLast := func(do func(t *testing.T, s *lineup)) faults {
		return func(t *testing.T, s *lineup) []fakeetcd.Fault {
			t.Helper()
			return []fakeetcd.Fault{{Times: 1, Match: leaves, OnRequest: func() {
				if err := s.leader.Err(); !errors.Is(err, election.ErrResigned) {
					t.Errorf("it has not resigned: %v", err)
				}
				do(t, s)
				time.Sleep(time.Second) // a candidate whose key is gone enters again
			}}}
		}
	}
	written := func(i int) faults {
		return atLast(func(t *testing.T, s *lineup) {
			t.Helper()
			put(t, s.p[i].c, s.keys[i], string(rune('a'+i)), s.p[i].s.Status().LeaseID)
		})
	}
	deleted := func(i int) faults { return atLast(func(_ *testing.T, s *lineup) { s.srv.Delete(s.keys[i]) }) }
	replaced := func(i int) faults {
		return atLast(func(_ *testing.T, s *lineup) {
			s.srv.Delete(s.keys[i])
			s.srv.Put(s.keys[i], "theirs")
		})
	}
	goes := func(_ *testing.T, s *lineup) { _ = s.p[2].s.Close(s.p[2].c.Ctx()) }
	lost := []error{election.ErrNoCandidate, lease.ErrLost}
	for name, tc := range map[string]struct {
		faults faults
		to     string  // c, unless it is set
		next   int     // the candidate that leads next
		errs   []error // what Transfer's error matches; none: it returns nil
		stays  int     // the candidate whose key somebody else has taken, which must stay; 0: none
		gone   bool    // c has left
	}{
		"the chosen one's is written":                   {faults: written(2), next: 2},
		"the leader's is written":                       {faults: written(0), next: 2},
		"the leader's is gone":                          {faults: deleted(0), next: 1, errs: lost},
		"the leader's is another's":                     {faults: replaced(0), next: 1, errs: lost},
		"the chosen one's is gone, and it enters again": {faults: deleted(2), next: 2},
		"one between is another's":                      {faults: replaced(1), next: 2, stays: 1},
		"the chosen one's is another's":                 {faults: replaced(2), next: 2, stays: 2},
		"the leader's has no lease": {
			faults: atLast(func(_ *testing.T, s *lineup) { s.srv.Put(s.keys[0], "theirs") }),
			next:   1, errs: []error{election.ErrNoCandidate},
		},
		"the chosen one leaves": {faults: atLast(goes), next: 1, errs: []error{election.ErrNoCandidate}, gone: true},
		"the chosen one comes again behind a lock": {faults: atLast(func(t *testing.T, s *lineup) {
			t.Helper()
			goes(t, s)
			p, ctx := newProcess(t, s.srv, lease.Options{Owner: "lock"}), timeout(t, 30*time.Second, nil)
			go func() { _, _ = p.s.Lock(ctx, "x") }() // gives up
			synctest.Wait()
			newProcess(t, s.srv, lease.Options{}).campaign(ctx, election.Options{Value: "c"})
			synctest.Wait()
		}), next: 1, errs: []error{election.ErrBlocked}, gone: true},

		"no space":                         {faults: inject(full), next: 1, errs: []error{rpctypes.ErrNoSpace}},
		"no space, and the answer is lost": {faults: inject(full, left), next: 1, errs: []error{rpctypes.ErrNoSpace}},
		"no space, and nobody to pass":     {faults: inject(full), to: "b", next: 1},
		"no space after it was done": {faults: func(_ *testing.T, s *lineup) []fakeetcd.Fault {
			done := left
			done.OnAnswer = func() { s.p[0].c.Inject(fakeetcd.Txn, full) }
			return []fakeetcd.Fault{done}
		}, next: 2},
		// The deletion is somebody else's, since Transfer has not sent one, also after another of its answers was lost.
		"key deleted before it leaves": {faults: func(_ *testing.T, s *lineup) []fakeetcd.Fault {
			deleted := asked
			deleted.OnAnswer = func() { s.srv.Delete(s.leader.Key()) }
			return []fakeetcd.Fault{deleted}
		}, next: 1, errs: lost},
		// After a lost answer Transfer sends each request in two copies. The copy that finds the leader's key deleted by
		// the other may be answered first.
		"a copy is answered first": {faults: inject(asked, fakeetcd.Fault{Times: 1, Match: leaves, After: time.Second}), next: 2},
		// Transfer finds that nothing was done.
		"the chosen one leaves after a lost request": {faults: func(t *testing.T, s *lineup) []fakeetcd.Fault {
			t.Helper()
			lost := left
			lost.Lose, lost.OnRequest = fakeetcd.Request, func() { goes(t, s) }
			return []fakeetcd.Fault{lost}
		}, next: 1, errs: []error{election.ErrNoCandidate}, gone: true},
	} {
		inBubble(t, name, func(t *testing.T) {
			s := newLineup(t)
			for _, f := range tc.faults(t, s) {
				s.p[0].c.Inject(fakeetcd.Txn, f)
			}
			err := s.leader.Transfer(t.Context(), cmp.Or(tc.to, "c"))
			require.Equal(t, tc.errs == nil, err == nil, "%v", err)
			for _, want := range tc.errs {
				require.ErrorIs(t, err, want)
				require.ErrorContains(t, err, `resigned, but not to "c"`)
			}
			require.Equal(t, slices.Contains(tc.errs, lease.ErrLost), errors.Is(err, lease.ErrLost))
			require.ErrorIs(t, s.leader.Resign(t.Context()), election.ErrResigned)
			next, other := s.waiting[tc.next], s.waiting[3-tc.next]
			if tc.gone {
				require.Error(t, other.failed(t))
				require.Greater(t, next.won(t).Token(), s.leader.Token())
				return
			}
			requireOrder(t, next.won(t), other)
			requireReigns(t, s.srv, "a", string(rune('a'+tc.next)), string(rune('a'+3-tc.next)))
			if tc.stays > 0 {
				require.Len(t, s.srv.Keys(s.keys[tc.stays]), 1)
			}
		})
	}
}

// If the candidates in between do not fit into one transaction, the last one deletes the leader's key.
func TestLeadership_Transfer_pastManyInParts(t *testing.T) {
	bubble(t, func(t *testing.T, p *process) {
		leader := p.leads(t, election.Options{Value: "a"})
		granted, err := p.c.Grant(t.Context(), 3600)
		require.NoError(t, err)
		for i := range 250 {
			put(t, p.c, fmt.Sprintf("x/%x-p0-%d", int64(granted.ID), i), "between", granted.ID)
		}
		next := p.join(t).waits(t, election.Options{Value: "z"})
		var parts []int
		match := func(call fakeetcd.Call) bool {
			if leaves(call) {
				parts = append(parts, len(call.Request.(*pb.TxnRequest).Success))
			}
			return leaves(call)
		}
		p.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Match: match, Err: rpctypes.ErrGRPCTooManyOps})
		p.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Match: match})
		p.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Match: match, Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable})
		require.NoError(t, leader.Transfer(t.Context(), "z"))
		require.Contains(t, parts, 50, "after the refusal the parts are smaller")
		require.Equal(t, []string{"z"}, values(p.srv))
		require.NoError(t, next.won(t).Resign(t.Context()))
		requireReigns(t, p.srv, "a", "z")
	})
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
