package election_test

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

func TestLeadership_Transfer(t *testing.T) {
	for name, c := range map[string]struct {
		priorities []int
		to         int
	}{
		"to the next":            {[]int{0, 0, 0}, 1},
		"past one":               {[]int{0, 0, 0}, 2},
		"past many":              {[]int{0, 0, 0, 0, 0, 0}, 4},
		"past a higher priority": {[]int{0, 9, 0, 0}, 3},
	} {
		inBubble(t, name, func(t *testing.T) {
			s := newLineup(t, c.priorities...)
			srv, leader, list := s.srv, s.leader, s.waiting
			to := string(rune('a' + c.to))
			began := time.Now()
			require.NoError(t, leader.Transfer(t.Context(), to))
			require.Zero(t, time.Since(began))
			require.ErrorIs(t, leader.Err(), election.ErrResigned)
			require.NotErrorIs(t, leader.Err(), election.ErrHandedOver)
			next := list[c.to].won(t)
			require.Greater(t, next.Token(), leader.Token())

			order := values(srv) // the candidates that were passed stand behind all others
			require.Len(t, order, len(list)-1)
			for i := c.to; i < len(list); i++ {
				require.Equal(t, string(rune('a'+i)), order[i-c.to])
			}
			var then []*candidate
			for _, value := range order[1:] {
				then = append(then, list[value[0]-'a'])
			}
			requireOrder(t, next, then...)
			requireReigns(t, srv, append([]string{"a"}, order...)...)
		})
	}
}

// A Transfer that finds no candidate changes neither the leadership nor the queue.
func TestLeadership_Transfer_fails(t *testing.T) {
	bubble(t, func(t *testing.T, p *process) {
		l := p.leads(t, election.Options{Value: "a"})
		locks := newProcess(t, p.srv, lease.Options{Owner: "lock"}) // a contender that cannot be passed
		ctx := timeout(t, time.Hour, nil)
		go func() {
			if l, err := locks.s.Lock(ctx, "x"); err == nil {
				_ = l.Unlock(ctx)
			}
		}()
		time.Sleep(time.Second)
		b := p.join(t).waits(t, election.Options{Value: "b"})
		before, rev := values(p.srv), p.srv.Rev()
		for to, want := range map[string]error{
			"b": election.ErrBlocked, "nobody": election.ErrNoCandidate, "a": election.ErrNoCandidate, "lock": election.ErrNoCandidate,
		} {
			err := l.Transfer(t.Context(), to)
			require.ErrorIs(t, err, want)
			require.ErrorContains(t, err, `election: transfer "x":`)
			require.NotErrorIs(t, err, lease.ErrLost)
			require.NoError(t, l.Err())
		}
		require.NoError(t, l.Proclaim(t.Context(), "a"))
		require.Equal(t, before, values(p.srv))
		require.Equal(t, rev+1, p.srv.Rev(), "only Proclaim has written")
		b.requireWaiting(t)
		require.NoError(t, l.Resign(t.Context()))
		require.NoError(t, b.wins(t).Resign(t.Context()))
	})
}

// Only candidates of this package are passed, whatever other contenders are called. Transfer refuses an empty value: a lock
// of etcd's own, whose key is bare too, has it.
func TestLeadership_Transfer_passesNoOther(t *testing.T) {
	for _, suffix := range []string{"", "-x5-y", "-px-y", "-p5"} {
		bubbleOf(t, suffix, func(t *testing.T, p *process) {
			other := p.join(t)
			l := p.leads(t, election.Options{})
			granted, err := p.c.Grant(t.Context(), 60)
			require.NoError(t, err)
			enters := func(value string) {
				put(t, p.c, fmt.Sprintf("x/%x%s", int64(granted.ID), suffix), value, granted.ID)
			}
			enters("")
			n := len(p.c.Calls(fakeetcd.Any))
			require.EqualError(t, l.Transfer(t.Context(), ""), "election: value has 0 bytes, want 1 to 4096")
			require.EqualError(t, l.Transfer(t.Context(), strings.Repeat("x", 4097)), "election: value has 4097 bytes, want 1 to 4096")
			require.Len(t, p.c.Calls(fakeetcd.Any), n)
			require.NoError(t, l.Err())

			enters("other")
			other.waits(t, election.Options{Value: "b"})
			require.ErrorIs(t, l.Transfer(t.Context(), "b"), election.ErrBlocked)
			if suffix == "" { // a candidate of etcd's own packages may lead next
				require.NoError(t, l.Transfer(t.Context(), "other"))
			}
		})
	}
}

// lineup is a leader, "a", and waiting candidates, "b", "c" and so on.
type lineup struct {
	srv     *fakeetcd.Server
	p       []*process
	leader  *election.Leadership
	waiting []*candidate // nil for the leader
	keys    []string
}

// newLineup starts candidates in the order of their names: three, or with the given priorities, and then they keep the
// lead.
func newLineup(t *testing.T, priorities ...int) *lineup {
	t.Helper()
	s := &lineup{srv: newServer(t), waiting: []*candidate{nil}}
	keep := len(priorities) > 0
	if !keep {
		priorities = []int{0, 0, 0}
	}
	for i, priority := range priorities {
		p := newProcess(t, s.srv, lease.Options{})
		s.p = append(s.p, p)
		opts := election.Options{Value: string(rune('a' + i)), Priority: priority, KeepLead: keep}
		if i == 0 {
			s.leader = p.leads(t, opts)
		} else {
			s.waiting = append(s.waiting, p.waits(t, opts))
		}
		s.keys = append(s.keys, key(s.srv, opts.Value))
	}
	return s
}

// The candidates are in the leader's session, so they share a connection and perhaps commits. Of two candidates with the
// chosen value the first leads.
func TestLeadership_Transfer_inOneSession(t *testing.T) {
	bubble(t, func(t *testing.T, p *process) {
		leader := p.leads(t, election.Options{Value: "a"})
		b, c := p.waits(t, election.Options{Value: "b"}), p.waits(t, election.Options{Value: "c"})
		another := p.waits(t, election.Options{Value: "c"})
		p.c.Inject(fakeetcd.Txn, fakeetcd.Fault{After: 100 * time.Millisecond}) // so that requests meet
		require.NoError(t, leader.Transfer(t.Context(), "c"))
		requireOrder(t, c.wins(t), another, b)
		requireReigns(t, p.srv, "a", "c", "c", "b")
	})
}

// If a Transfer and a Resign, or two Transfers, run at once, exactly one of them returns nil, and one of the two
// candidates leads next.
func TestLeadership_Transfer_andAnotherAtOnce(t *testing.T) {
	for name, other := range map[string]func(*testing.T, *election.Leadership) error{
		"resign":   func(t *testing.T, l *election.Leadership) error { t.Helper(); return l.Resign(t.Context()) },
		"transfer": func(t *testing.T, l *election.Leadership) error { t.Helper(); return l.Transfer(t.Context(), "b") },
		"the same": func(t *testing.T, l *election.Leadership) error { t.Helper(); return l.Transfer(t.Context(), "c") },
	} {
		t.Run(name, func(t *testing.T) {
			for round := range 60 {
				synctest.Test(t, func(t *testing.T) {
					s := newLineup(t)
					if round%2 == 0 {
						s.p[0].c.Inject(fakeetcd.Txn, fakeetcd.Fault{Before: time.Duration(rand.N(3)) * time.Millisecond})
					}
					first := inBackground(func() error { return s.leader.Transfer(t.Context(), "c") })
					second := inBackground(func() error {
						time.Sleep(time.Duration(rand.N(5)) * time.Millisecond)
						for range rand.N(50) {
							runtime.Gosched()
						}
						return other(t, s.leader)
					})
					var done int
					for _, err := range []error{first.result(t), second.result(t)} {
						require.NotErrorIs(t, err, lease.ErrLost)
						if err == nil {
							done++
							continue
						}
						require.ErrorIs(t, err, election.ErrResigned)
					}
					require.Equal(t, 1, done)
					time.Sleep(time.Second)
					require.NotEqual(t, s.waiting[1].waiting(), s.waiting[2].waiting(), "one of them leads")
					require.Len(t, reigns(s.srv), 2)
					require.Len(t, values(s.srv), 2)
				})
			}
		})
	}
}

// If the leader transfers to a candidate while another of a higher priority waits, one of the two leads next, and in
// the end the higher priority.
func TestLeadership_Transfer_asAHigherPriorityIsPreferred(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			s := newLineup(t)
			d := newProcess(t, s.srv, lease.Options{})
			s.p[0].c.Inject(fakeetcd.Any, fakeetcd.Fault{Before: time.Duration(rand.N(3)) * 10 * time.Millisecond})
			high := d.campaign(t.Context(), election.Options{Value: "d", Priority: 1 + rand.N(9)})
			time.Sleep(900*time.Millisecond + rand.N(150*time.Millisecond))
			err := s.leader.Transfer(t.Context(), "c")
			if err != nil { // the leader had handed over to d
				require.ErrorIs(t, err, election.ErrResigned)
				require.NotErrorIs(t, err, lease.ErrLost)
				require.NoError(t, s.leader.Resign(t.Context()))
			} else {
				require.NoError(t, s.waiting[2].wins(t).Resign(t.Context()))
			}
			time.Sleep(3 * time.Second)
			if high.waiting() { // b follows c, and hands over
				require.NoError(t, s.waiting[1].wins(t).Resign(t.Context()))
			}
			high.wins(t)
		})
	}
}

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
