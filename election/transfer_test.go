package election_test

import (
	"fmt"
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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := newServer(t)
				leader, list := rank(t, srv, c.priorities...)
				to := string(rune('a' + c.to))
				began := time.Now()
				require.NoError(t, leader.Transfer(t.Context(), to))
				require.Zero(t, time.Since(began))
				require.ErrorIs(t, leader.Err(), election.ErrResigned)
				require.NotErrorIs(t, leader.Err(), election.ErrHandedOver)
				next := list[c.to].won(t)
				require.Greater(t, next.Token(), leader.Token())

				order := values(srv) // those that were passed stand behind all others
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
		})
	}
}

// Transfer fails before anything was done: the leadership goes on, and so does the queue.
func TestLeadership_Transfer_fails(t *testing.T) {
	locks := func(t *testing.T, p *process) { // somebody who keeps his place
		t.Helper()
		ctx := timeout(t, time.Hour, nil)
		go func() {
			if l, err := p.s.Lock(ctx, "x"); err == nil {
				_ = l.Unlock(ctx)
			}
		}()
		time.Sleep(time.Second)
	}
	for name, tc := range map[string]struct {
		before, after func(*testing.T, *process) // b comes between
		to            string
		want          error
	}{
		"nobody":                      {to: "c", want: election.ErrNoCandidate},
		"itself":                      {to: "a", want: election.ErrNoCandidate},
		"behind a lock":               {before: locks, to: "b", want: election.ErrBlocked},
		"nobody, and a lock":          {before: locks, to: "c", want: election.ErrNoCandidate},
		"to a lock":                   {before: locks, to: "lock", want: election.ErrNoCandidate},
		"nobody, and a lock after it": {after: locks, to: "c", want: election.ErrNoCandidate},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := newServer(t)
				l := newProcess(t, srv, lease.Options{}).leads(t, election.Options{Value: "a"})
				if tc.before != nil {
					tc.before(t, newProcess(t, srv, lease.Options{Owner: "lock"}))
				}
				b := newProcess(t, srv, lease.Options{}).waits(t, election.Options{Value: "b"})
				if tc.after != nil {
					tc.after(t, newProcess(t, srv, lease.Options{Owner: "lock"}))
				}
				before := values(srv)
				rev := srv.Rev()
				err := l.Transfer(t.Context(), tc.to)
				require.ErrorIs(t, err, tc.want)
				require.ErrorContains(t, err, `election: transfer "x":`)
				require.NotErrorIs(t, err, lease.ErrLost)
				require.NoError(t, l.Err())
				require.NoError(t, l.Proclaim(t.Context(), "a"))
				require.Equal(t, before, values(srv))
				require.Equal(t, rev+1, srv.Rev(), "nobody was asked anything")
				b.requireWaiting(t)
				require.NoError(t, l.Resign(t.Context()))
				require.NoError(t, b.wins(t).Resign(t.Context()))
				time.Sleep(time.Hour)
				require.Empty(t, srv.Keys(""))
			})
		})
	}
}

// A lock behind the candidate does not matter.
func TestLeadership_Transfer_beforeALock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		l := newProcess(t, srv, lease.Options{}).leads(t, election.Options{Value: "a"})
		b := newProcess(t, srv, lease.Options{}).waits(t, election.Options{Value: "b"})
		p := newProcess(t, srv, lease.Options{Owner: "lock"})
		locks := inBackground(func() error {
			l, err := p.s.Lock(t.Context(), "x")
			if err == nil {
				err = l.Unlock(t.Context())
			}
			return err
		})
		time.Sleep(time.Second)
		require.NoError(t, l.Transfer(t.Context(), "b"))
		locks.requirePending(t)
		require.NoError(t, b.won(t).Resign(t.Context()))
		require.NoError(t, locks.result(t))
		requireReigns(t, srv, "a", "b", "lock")
	})
}

// A value that no candidate has on purpose would mean any lock of etcd's own.
func TestLeadership_Transfer_refusesBadInput(t *testing.T) {
	for name, tc := range map[string]struct{ value, want string }{
		"empty":    {"", "election: value is empty, want 1 to 4096 bytes"},
		"too long": {strings.Repeat("x", 4097), "election: value has 4097 bytes, want 0 to 4096"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := newServer(t)
				p := newProcess(t, srv, lease.Options{})
				l := p.leads(t, election.Options{})
				granted, err := p.c.Grant(t.Context(), 60)
				require.NoError(t, err)
				put(t, p.c, fmt.Sprintf("x/%x", int64(granted.ID)), "", granted.ID)
				n := len(p.c.Calls(fakeetcd.Any))
				require.EqualError(t, l.Transfer(t.Context(), tc.value), tc.want)
				require.Len(t, p.c.Calls(fakeetcd.Any), n)
				require.NoError(t, l.Err())
			})
		})
	}
}
