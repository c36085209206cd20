package election_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

func TestLeadership_Resign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		p := newProcess(t, srv, lease.Options{})
		for _, led := range []time.Duration{0, time.Second} { // watched or not
			l := p.leads(t, election.Options{Value: "a"})
			next := newProcess(t, srv, lease.Options{}).waits(t, election.Options{Value: "b"})
			time.Sleep(led)
			p.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Before: time.Second})
			resigns := inBackground(func() error { return l.Resign(t.Context()) })
			resigns.requirePending(t)
			require.ErrorIs(t, context.Cause(l.Context()), election.ErrResigned, "the context ends first")
			next.requireWaiting(t)
			require.NoError(t, resigns.result(t))
			after := next.won(t)

			require.ErrorIs(t, l.Err(), election.ErrResigned)
			require.NotErrorIs(t, l.Err(), lease.ErrLost)
			err := l.Resign(t.Context())
			require.ErrorIs(t, err, election.ErrResigned)
			require.ErrorContains(t, err, `election: resign from "x":`)
			require.ErrorIs(t, l.Proclaim(t.Context(), "v"), election.ErrResigned)
			require.ErrorIs(t, l.Transfer(t.Context(), "b"), election.ErrResigned)
			require.NoError(t, after.Resign(t.Context()))
			require.Empty(t, srv.Keys(""))
			time.Sleep(time.Minute)
			require.Equal(t, election.ErrResigned, context.Cause(l.Context()))
		}
	})
}

func TestLeadership_Resign_onceForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, newServer(t), lease.Options{})
		l := p.leads(t, election.Options{})
		p.c.Inject(fakeetcd.Txn, fakeetcd.Fault{After: time.Second})
		errs := make(chan error, 8)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { errs <- l.Resign(t.Context()) })
		}
		wg.Wait()
		close(errs)
		var resigned int
		for err := range errs {
			if err == nil {
				resigned++
				continue
			}
			require.ErrorIs(t, err, election.ErrResigned)
		}
		require.Equal(t, 1, resigned)
	})
}

// A Resign that fails does not forget the leadership: its key goes in the background, and another Resign
// waits for that.
func TestLeadership_Resign_keepsItsStateUntilConfirmed(t *testing.T) {
	for name, tc := range map[string]struct {
		fault     fakeetcd.Fault
		cut       time.Duration // the network is back then
		confirmed time.Duration // at most
	}{
		"context has ended":  {},
		"request lost":       {fault: fakeetcd.Fault{Times: 1, Lose: fakeetcd.Request}},
		"answer lost":        {fault: fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer}},
		"request late":       {fault: fakeetcd.Fault{Times: 1, Before: 10 * time.Second, Late: true}},
		"cut off":            {cut: 12 * time.Second, confirmed: 12 * time.Second},
		"refused":            {fault: fakeetcd.Fault{Times: 1, Err: rpctypes.ErrGRPCPermissionDenied}},
		"all requests slow":  {fault: fakeetcd.Fault{Before: 2 * time.Second}, confirmed: 3 * time.Second},
		"some requests lost": {fault: fakeetcd.Fault{Times: 3, Lose: fakeetcd.Request}, confirmed: attempt + time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := newServer(t)
				p := newProcess(t, srv, lease.Options{})
				l := p.leads(t, election.Options{Value: "a"})
				next := newProcess(t, srv, lease.Options{}).waits(t, election.Options{Value: "b"})
				p.c.Inject(fakeetcd.Txn, tc.fault)
				began := time.Now()
				if tc.cut > 0 {
					p.c.Cut()
					time.AfterFunc(tc.cut, p.c.Restore)
				}
				bound := timeout(t, time.Second, errEnough)
				if name == "context has ended" {
					bound = timeout(t, 0, errEnough)
				}
				err := l.Resign(bound)
				require.Error(t, err)
				require.NotErrorIs(t, err, lease.ErrLost)
				require.NotErrorIs(t, err, election.ErrResigned)
				if name != "refused" {
					require.ErrorIs(t, err, errEnough)
				}
				require.ErrorIs(t, l.Err(), election.ErrResigned, "it does not lead on")

				again := []*action{
					inBackground(func() error { return l.Resign(t.Context()) }),
					inBackground(func() error { return l.Resign(t.Context()) }),
				}
				var confirmed int
				for _, a := range again {
					if err := a.result(t); err == nil {
						confirmed++
					} else {
						require.ErrorIs(t, err, election.ErrResigned, "the other was first")
					}
				}
				require.NotZero(t, confirmed)
				require.Empty(t, key(srv, "a"))
				require.LessOrEqual(t, time.Since(began), time.Second+tc.confirmed)
				require.ErrorIs(t, l.Resign(t.Context()), election.ErrResigned)
				require.Greater(t, next.wins(t).Token(), l.Token())
				time.Sleep(time.Hour)
				require.Equal(t, []string{"b"}, values(srv))
			})
		})
	}
}

// Nobody has to ask again: the key goes as soon as that can be.
func TestLeadership_Resign_isCompletedInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		p := newProcess(t, srv, lease.Options{})
		l := p.leads(t, election.Options{Value: "a"})
		next := newProcess(t, srv, lease.Options{}).waits(t, election.Options{Value: "b"})
		p.c.Cut()
		require.ErrorIs(t, l.Resign(timeout(t, time.Second, errEnough)), errEnough)
		time.Sleep(10 * time.Second)
		next.requireWaiting(t)
		p.c.Restore()
		time.Sleep(attempt)
		next.won(t)
		require.Equal(t, lease.StateHeld, p.s.Status().State)
		require.NoError(t, l.Resign(t.Context()), "the first that hears that it is done")
		require.ErrorIs(t, l.Resign(t.Context()), election.ErrResigned)
	})
}

// A confirmation that cannot be had any more: the key goes with the lease, and that is said.
func TestLeadership_Resign_theLeaseIsLostFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		p := newProcess(t, srv, lease.Options{})
		l := p.leads(t, election.Options{})
		next := newProcess(t, srv, lease.Options{}).waits(t, election.Options{})
		p.c.Cut()
		require.ErrorIs(t, l.Resign(timeout(t, time.Second, errEnough)), errEnough)
		err := l.Resign(timeout(t, time.Second, errEnough))
		require.ErrorIs(t, err, errEnough)
		require.NotErrorIs(t, err, election.ErrResigned)
		again := inBackground(func() error { return l.Resign(t.Context()) })
		requireLost(t, again.result(t), lease.ReasonDeadlinePassed)
		require.Equal(t, untilLost-3*time.Second, again.took)
		require.ErrorIs(t, l.Err(), election.ErrResigned, "the first end counts")
		next.wins(t)
	})
}

// However late a clean-up is, it deletes nobody else's key: not the next leader's, nor what somebody has
// put in the place of its own.
func TestLeadership_Resign_deletesNobodyElsesKey(t *testing.T) {
	t.Run("late", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			srv := newServer(t)
			p, q := newProcess(t, srv, lease.Options{}), newProcess(t, srv, lease.Options{})
			l := p.leads(t, election.Options{Value: "a"})
			next := q.waits(t, election.Options{Value: "b"})
			p.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Match: leaves, Before: 30 * time.Second, Late: true})
			require.ErrorIs(t, l.Resign(timeout(t, time.Second, errEnough)), errEnough)
			leader := next.wins(t)
			again := p.waits(t, election.Options{Value: "c"}) // with the same key, perhaps
			time.Sleep(time.Minute)
			require.NoError(t, leader.Err())
			require.Equal(t, []string{"b", "c"}, values(srv))
			requireOrder(t, leader, again)
		})
	})
	for name, watched := range map[string]time.Duration{"replaced, not watched": 0, "replaced, watched": time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newProcess(t, newServer(t), lease.Options{})
				l := p.leads(t, election.Options{Value: "a"})
				time.Sleep(watched)
				require.True(t, p.srv.Delete(l.Key()))
				put(t, p.c, l.Key(), "somebody else's", p.s.Status().LeaseID)
				requireLost(t, l.Resign(t.Context()), lease.ReasonKeyDeleted)
				require.ErrorIs(t, l.Resign(t.Context()), election.ErrResigned)
				time.Sleep(time.Hour)
				require.Equal(t, []string{"somebody else's"}, values(p.srv))
			})
		})
	}
	t.Run("replaced while it is not confirmed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newProcess(t, newServer(t), lease.Options{})
			l := p.leads(t, election.Options{Value: "a"})
			time.Sleep(time.Second)
			p.c.Cut()
			require.ErrorIs(t, l.Resign(timeout(t, time.Second, errEnough)), errEnough)
			require.True(t, p.srv.Delete(l.Key()))
			p.srv.Put(l.Key(), "somebody else's")
			p.c.Restore()
			require.NoError(t, l.Resign(t.Context()))
			time.Sleep(time.Hour)
			require.Equal(t, []string{"somebody else's"}, values(p.srv))
		})
	})
}

// A Resign and a Proclaim at once: neither takes the other's doing for a loss.
func TestLeadership_Resign_duringAProclaim(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			p := newProcess(t, newServer(t), lease.Options{})
			l := p.leads(t, election.Options{})
			proclaims := inBackground(func() error { return l.Proclaim(t.Context(), "v") })
			require.NoError(t, l.Resign(t.Context()))
			if err := proclaims.result(t); err != nil {
				require.ErrorIs(t, err, election.ErrResigned)
				require.NotErrorIs(t, err, lease.ErrLost)
			}
			require.Empty(t, p.srv.Keys(""))
		})
	}
}

// Resigned while Proclaim asks why the key is gone: for it the first end counts. Resign tells of the loss.
func TestLeadership_Resign_whileALossIsLookedInto(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, newServer(t), lease.Options{})
		l := p.leads(t, election.Options{})
		require.True(t, p.srv.Delete(l.Key()))
		restore := p.c.Inject(fakeetcd.TimeToLive, fakeetcd.Fault{Lose: fakeetcd.Request})
		proclaims := inBackground(func() error { return l.Proclaim(t.Context(), "v") })
		proclaims.requirePending(t)
		restore()
		requireLost(t, l.Resign(t.Context()), lease.ReasonKeyDeleted)
		err := proclaims.result(t)
		require.ErrorIs(t, err, election.ErrResigned)
		require.NotErrorIs(t, err, lease.ErrLost)
	})
}

// The leadership's own context, which the call ends, and one made of it, are as good as any other; but not for ever.
func TestLeadership_Resign_onItsOwnContext(t *testing.T) {
	for name, tc := range map[string]struct {
		call func(context.Context, *election.Leadership) error
		next string
	}{
		"resign":   {func(ctx context.Context, l *election.Leadership) error { return l.Resign(ctx) }, "b"},
		"transfer": {func(ctx context.Context, l *election.Leadership) error { return l.Transfer(ctx, "c") }, "c"},
	} {
		for cut, took := range map[bool]time.Duration{false: 0, true: 8 * time.Second} {
			t.Run(fmt.Sprint(name, ", cut off: ", cut), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newTrio(t)
					ctx, cancel := context.WithCancel(s.leader.Context())
					defer cancel()
					if cut {
						s.p[0].c.Inject(fakeetcd.Txn, fakeetcd.Fault{Match: leaves, Lose: fakeetcd.Request})
					}
					began := time.Now()
					err := tc.call(ctx, s.leader)
					require.Equal(t, took, time.Since(began))
					if cut {
						require.ErrorIs(t, err, context.DeadlineExceeded)
						return
					}
					require.NoError(t, err)
					synctest.Wait()
					require.Equal(t, tc.next, values(s.srv)[0])
				})
			})
		}
	}
}
