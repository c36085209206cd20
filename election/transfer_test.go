package election_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/lease"
)

func TestLeadership_Transfer(t *testing.T) {
	for name, c := range map[string]struct {
		priorities []int
		to         string
		order      []int
	}{
		"to the next":            {[]int{0, 0, 0}, "b", []int{1, 2}},
		"past one":               {[]int{0, 0, 0}, "c", []int{2, 1}},
		"past many":              {[]int{0, 0, 0, 0, 0}, "e", []int{4, 1, 2, 3}},
		"past a higher priority": {[]int{0, 9, 0, 0}, "d", []int{3, 1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := newServer(t)
				leader, list := rank(t, srv, c.priorities...)
				began := time.Now()
				require.NoError(t, leader.Transfer(t.Context(), c.to))
				require.Less(t, time.Since(began), time.Second)
				require.ErrorIs(t, leader.Err(), election.ErrResigned)
				next := list[c.order[0]].won(t)
				require.Greater(t, next.Token(), leader.Token())
				requireOrder(t, next, pick(list, c.order[1:])...)
				want := []string{"a", c.to}
				for _, i := range c.order[1:] {
					want = append(want, string(rune('a'+i)))
				}
				requireReigns(t, srv, want...)
			})
		})
	}
}

// Transfer fails before anything was done: the leadership goes on, and so does the queue.
func TestLeadership_Transfer_fails(t *testing.T) {
	locks := func(t *testing.T, p *process) { // somebody who does not let others pass
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

// A lock behind the candidate does not matter, and one can be transferred to, since it need not step back.
func TestLeadership_Transfer_besideALock(t *testing.T) {
	for name, to := range map[string]string{"before it": "b", "to it": "lock"} {
		t.Run(name, func(t *testing.T) {
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
				require.NoError(t, l.Transfer(t.Context(), to))
				if to == "b" {
					locks.requirePending(t)
					require.NoError(t, b.won(t).Resign(t.Context()))
					require.NoError(t, locks.result(t))
					requireReigns(t, srv, "a", "b", "lock")
					return
				}
				require.NoError(t, locks.result(t))
				require.NoError(t, b.wins(t).Resign(t.Context()))
				requireReigns(t, srv, "a", "lock", "b")
			})
		})
	}
}

// P6: one between hangs. Transfer ends with its context, and the leadership goes on; or it waits until that one's lease
// has expired.
func TestLeadership_Transfer_oneBetweenHangs(t *testing.T) {
	for name, bound := range map[string]time.Duration{"given up": 5 * time.Second, "waited for": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := newServer(t)
				l := newProcess(t, srv, lease.Options{}).leads(t, election.Options{Value: "a"})
				p := newProcess(t, srv, lease.Options{})
				hangs := p.waits(t, election.Options{Value: "b"})
				c := newProcess(t, srv, lease.Options{}).waits(t, election.Options{Value: "c"})
				p.c.Cut()
				transfers := inBackground(func() error { return l.Transfer(timeout(t, bound, errEnough), "c") })
				if err := transfers.result(t); bound < time.Hour {
					require.ErrorIs(t, err, errEnough)
					require.NotErrorIs(t, err, lease.ErrLost)
					require.Equal(t, bound, transfers.took)
					require.NoError(t, l.Err())
					c.requireWaiting(t)
					require.NoError(t, l.Transfer(t.Context(), "c"))
				} else {
					require.NoError(t, err)
					require.Less(t, transfers.took, 31*time.Second)
				}
				requireLost(t, hangs.failed(t), lease.DeadlinePassed)
				requireReigns(t, srv, "a", "c")
				require.Greater(t, c.won(t).Token(), l.Token())
			})
		})
	}
}

// P4, P6: the leadership ends while Transfer waits for one between that hangs, and Transfer with it.
func TestLeadership_Transfer_endsWithTheLeadership(t *testing.T) {
	for name, e := range ends {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := newServer(t)
				p, q := newProcess(t, srv, lease.Options{}), newProcess(t, srv, lease.Options{TTL: time.Hour})
				l := p.leads(t, election.Options{Value: "a"})
				q.waits(t, election.Options{Value: "b"})
				newProcess(t, srv, lease.Options{}).waits(t, election.Options{Value: "c"})
				q.c.Cut()
				transfers := inBackground(func() error { return l.Transfer(t.Context(), "c") })
				transfers.requirePending(t)
				began := time.Now()
				e.do(t, p, l)
				requireLost(t, transfers.result(t), e.reason)
				require.LessOrEqual(t, time.Since(began), untilLost)
				requireLost(t, l.Resign(t.Context()), e.reason)
				q.c.Restore()
			})
		})
	}
	t.Run("resigned", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			srv := newServer(t)
			p, q := newProcess(t, srv, lease.Options{}), newProcess(t, srv, lease.Options{TTL: time.Hour})
			l := p.leads(t, election.Options{Value: "a"})
			q.waits(t, election.Options{Value: "b"})
			newProcess(t, srv, lease.Options{}).waits(t, election.Options{Value: "c"})
			q.c.Cut()
			transfers := inBackground(func() error { return l.Transfer(t.Context(), "c") })
			transfers.requirePending(t)
			began := time.Now()
			require.NoError(t, l.Resign(t.Context()))
			err := transfers.result(t)
			require.ErrorIs(t, err, election.ErrResigned)
			require.NotErrorIs(t, err, lease.ErrLost)
			require.Zero(t, time.Since(began))
			q.c.Restore()
		})
	})
}
