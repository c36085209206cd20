package election_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

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
