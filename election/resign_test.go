package election_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

func TestLeadership_Resign(t *testing.T) {
	bubble(t, func(t *testing.T, p *process) {
		for _, led := range []time.Duration{0, time.Second} { // before and after the leader's key is watched
			l := p.leads(t, election.Options{Value: "a"})
			next := p.join(t).waits(t, election.Options{Value: "b"})
			time.Sleep(led)
			p.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Before: time.Second})
			resigns := inBackground(func() error { return l.Resign(t.Context()) })
			resigns.requireWaiting(t)
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
			require.Empty(t, p.srv.Keys(""))
			time.Sleep(time.Minute)
			require.Equal(t, election.ErrResigned, context.Cause(l.Context()))
		}
	})
}

// If Resign and Proclaim run at once, neither takes the other's write for a loss.
func TestLeadership_Resign_duringAProclaim(t *testing.T) {
	for range 100 {
		bubble(t, func(t *testing.T, p *process) {
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

// Resign and Transfer accept the leadership's own context, which they end, or a context derived from it. The release is
// then bounded.
func TestLeadership_Resign_onItsOwnContext(t *testing.T) {
	for name, tc := range map[string]struct {
		call func(context.Context, *election.Leadership) error
		next string
	}{
		"resign":   {func(ctx context.Context, l *election.Leadership) error { return l.Resign(ctx) }, "b"},
		"transfer": {func(ctx context.Context, l *election.Leadership) error { return l.Transfer(ctx, "c") }, "c"},
	} {
		for cut, took := range map[bool]time.Duration{false: 0, true: 8 * time.Second} {
			inBubble(t, fmt.Sprint(name, ", cut off: ", cut), func(t *testing.T) {
				s := newLineup(t)
				ctx, cancel := context.WithTimeout(s.leader.Context(), time.Hour)
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
		}
	}
}

// If Resign is called while Proclaim finds out why the key is gone, Proclaim returns ErrResigned, and Resign the loss.
func TestLeadership_Resign_whileALossIsLookedInto(t *testing.T) {
	bubble(t, func(t *testing.T, p *process) {
		l := p.leads(t, election.Options{})
		require.True(t, p.srv.Delete(l.Key()))
		restore := p.c.Inject(fakeetcd.TimeToLive, fakeetcd.Fault{Lose: fakeetcd.Request})
		proclaims := inBackground(func() error { return l.Proclaim(t.Context(), "v") })
		proclaims.requireWaiting(t)
		restore()
		requireLost(t, l.Resign(t.Context()), lease.ReasonKeyDeleted)
		err := proclaims.result(t)
		require.ErrorIs(t, err, election.ErrResigned)
		require.NotErrorIs(t, err, lease.ErrLost)
	})
}

// A context that ended because another lock was unlocked says nothing of the leadership.
func TestLeadership_Resign_onTheContextOfALock(t *testing.T) {
	bubble(t, func(t *testing.T, p *process) {
		l := p.leads(t, election.Options{})
		p.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Lose: fakeetcd.Request})
		for _, call := range []func(context.Context) error{
			func(ctx context.Context) error { return l.Proclaim(ctx, "v") }, l.Resign, l.Resign,
		} {
			err := call(timeout(t, time.Second, lease.ErrUnlocked))
			require.ErrorIs(t, err, lease.ErrUnlocked)
			require.NotErrorIs(t, err, election.ErrResigned)
		}
	})
}

// Resign ends a Proclaim that waits for its answer.
func TestLeadership_Resign_endsAProclaim(t *testing.T) {
	bubble(t, func(t *testing.T, p *process) {
		l := p.leads(t, election.Options{})
		p.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Match: writes, Lose: fakeetcd.Answer})
		proclaims := inBackground(func() error { return l.Proclaim(t.Context(), "v") })
		proclaims.requireWaiting(t)
		require.NoError(t, l.Resign(t.Context()))
		err := proclaims.result(t)
		require.ErrorIs(t, err, election.ErrResigned)
		require.ErrorContains(t, err, "the value may be the new one")
		require.Zero(t, proclaims.took)
	})
}

func (p *process) release(t *testing.T) {
	t.Helper()
	require.NoError(t, lease.Release(t.Context(), p.c.Client, "x", lease.ReleaseOptions{}))
}

// A leader that is asked to release leads until it has resigned, as others see it, and the next candidate follows.
func TestLeadership_stepsDownWhenAsked(t *testing.T) {
	bubble(t, func(t *testing.T, p *process) {
		other := p.join(t)
		l := p.leads(t, election.Options{Value: "one"})
		next := other.waits(t, election.Options{Value: "two"})
		before, err := election.Current(t.Context(), p.c.Client, "x")
		require.NoError(t, err)

		other.release(t)
		synctest.Wait()
		require.Equal(t, lease.ErrAskedToRelease, context.Cause(l.Context()))
		require.Equal(t, lease.ErrAskedToRelease, l.Err())
		require.ErrorIs(t, l.Proclaim(t.Context(), "three"), lease.ErrAskedToRelease)
		require.ErrorIs(t, l.Transfer(t.Context(), "two"), lease.ErrAskedToRelease)
		next.requireWaiting(t)
		now, err := election.Current(t.Context(), p.c.Client, "x")
		require.NoError(t, err)
		require.Equal(t, before, now)
		require.NoError(t, l.Resign(l.Context()), "on its own context, which has ended already")
		require.NoError(t, next.won(t).Resign(t.Context()))
	})
}

// A request to release reaches the leader even if the leader proclaims a value between the request's read and its
// write.
func TestLeadership_stepsDownWhenAsked_proclaimedMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T, p *process) {
		other := p.join(t)
		l := p.leads(t, election.Options{Value: "one"})
		other.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 2, Before: 10 * time.Millisecond}) // the second is the request
		go func() {
			time.Sleep(15 * time.Millisecond)
			_ = l.Proclaim(t.Context(), "two")
		}()
		other.release(t)
		time.Sleep(time.Second)
		require.Equal(t, lease.ErrAskedToRelease, l.Err())
		now, err := election.Current(t.Context(), p.c.Client, "x")
		require.NoError(t, err)
		require.Equal(t, "two", now.Value)
		require.NoError(t, l.Resign(t.Context()))
	})
}

// A candidate that is asked to release before it knows that it leads enters the queue again at its end.
func TestRun_isAskedBeforeItKnows(t *testing.T) {
	bubble(t, func(t *testing.T, p *process) {
		other := p.join(t)
		first, before := other.leads(t, election.Options{}), other.waits(t, election.Options{})
		r := p.runs(t, election.Options{})
		time.Sleep(time.Second)
		require.NoError(t, first.Resign(t.Context()))
		second := before.won(t)
		time.Sleep(time.Second)
		require.NoError(t, second.Proclaim(t.Context(), "new"))
		p.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Before: 4 * time.Second}) // delays its check whether it was passed
		require.NoError(t, second.Resign(t.Context()))
		synctest.Wait()
		other.release(t)
		r.requireIdle(t)
		time.Sleep(20 * time.Second)
		r.leads(t)
		r.requireIdle(t)
	})
}
