package election_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/hosttest"
	"github.com/leasefence/leasefence/lease"
)

// After a loss a leader sends nothing more. Each call returns the reason of the loss, Resign only once. The next leader
// has a larger token.
func TestLeadership_lost(t *testing.T) {
	all := maps.Clone(losses)
	all["session closed"] = loss{func(p *process, _ string) { _ = p.s.Close(p.c.Ctx()) }, lease.ReasonSessionClosed}
	for name, loss := range all {
		bubbleOf(t, name, func(t *testing.T, p *process) {
			l := p.leads(t, election.Options{Value: "a"})
			next := p.join(t).waits(t, election.Options{Value: "b"})
			loss.happens(p, l.Key())
			await(t, l.Context().Done())
			requireLost(t, context.Cause(l.Context()), loss.reason)
			calls := len(p.c.Calls(fakeetcd.Txn))
			requireLost(t, l.Proclaim(t.Context(), "late"), loss.reason)
			requireLost(t, l.Transfer(t.Context(), "b"), loss.reason)
			require.Len(t, p.c.Calls(fakeetcd.Txn), calls, "nothing is sent")
			requireLost(t, l.Resign(t.Context()), loss.reason)
			require.ErrorIs(t, l.Resign(t.Context()), election.ErrResigned)
			requireLost(t, l.Err(), loss.reason)
			require.Greater(t, next.wins(t).Token(), l.Token())
			p.c.Restore()
			time.Sleep(time.Hour)
			require.Equal(t, []string{"b"}, values(p.srv))
		})
	}
}

// A leader whose host was suspended past the deadline has lost, whichever call looks first, before any timer has run.
func TestLeadership_suspended(t *testing.T) {
	for name, look := range map[string]func(context.Context, *election.Leadership) error{
		"Err":    func(_ context.Context, l *election.Leadership) error { return l.Err() },
		"Resign": func(ctx context.Context, l *election.Leadership) error { return l.Resign(ctx) },
	} {
		inBubble(t, name, func(t *testing.T) {
			host, srv := hosttest.Start(t, false), newServer(t)
			l := newProcess(t, srv, lease.Options{}).leads(t, election.Options{})
			host.Suspend(untilLost)
			require.NoError(t, context.Cause(l.Context()), "nothing has checked the clock yet")
			requireLost(t, look(t.Context(), l), lease.ReasonDeadlinePassed)
			requireLost(t, context.Cause(l.Context()), lease.ReasonDeadlinePassed)
		})
	}
}

// Proclaim changes the value and nothing else. Neither the leader nor a waiting candidate takes the write for a loss or
// a request to hand over.
func TestLeadership_Proclaim(t *testing.T) {
	bubble(t, func(t *testing.T, p *process) {
		l := p.leads(t, election.Options{Value: "a", KeepLead: true})
		next := p.join(t).waits(t, election.Options{Value: "b", Priority: 1})
		before := p.srv.Keys("x/")[0]
		token := l.Token()
		for _, value := range []string{"new", "new", "", "newer"} {
			require.NoError(t, l.Proclaim(t.Context(), value))
			time.Sleep(time.Second)
			require.Equal(t, []string{value, "b"}, values(p.srv))
			kv := p.srv.Keys("x/")[0]
			require.Equal(t, before.CreateRevision, kv.CreateRevision)
			require.Equal(t, before.Lease, kv.Lease)
			require.Equal(t, l.Key(), string(kv.Key))
			require.Equal(t, token, l.Token())
			require.NoError(t, l.Err())
		}
		next.requireWaiting(t)
		requireOrder(t, l, next)
	})
}

// After its own write a leader does not look for a candidate to prefer, but a request that the write has hidden counts.
func TestLeadership_Proclaim_isNoRequestToHandOver(t *testing.T) {
	bubble(t, func(t *testing.T, p *process) {
		l := p.leads(t, election.Options{Value: "a"})
		p.join(t).waits(t, election.Options{Value: "b"})
		p.c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{After: time.Millisecond}) // the answer comes before the event
		reads := len(p.c.Calls(fakeetcd.Get))
		for range 10 {
			require.NoError(t, l.Proclaim(t.Context(), "a"))
			time.Sleep(time.Second)
		}
		require.Len(t, p.c.Calls(fakeetcd.Get), reads)

		high := p.join(t).campaign(t.Context(), election.Options{Value: "c", Priority: 1})
		p.c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{After: time.Hour})
		time.Sleep(1500 * time.Millisecond)
		require.NoError(t, l.Err(), "the request has not been seen")
		require.NoError(t, l.Proclaim(t.Context(), "a"))
		synctest.Wait()
		require.ErrorIs(t, l.Err(), election.ErrHandedOver)
		require.NoError(t, l.Resign(t.Context()))
		high.wins(t)
	})
}

// The late request of a Proclaim that has given up arrives before or after another Proclaim, and does not undo it.
func TestLeadership_Proclaim_lateRequestUndoesNothing(t *testing.T) {
	for name, arrives := range map[string]time.Duration{
		"after the next": 3 * time.Second, "before the next": 1500 * time.Millisecond,
	} {
		bubbleOf(t, name, func(t *testing.T, p *process) {
			l := p.leads(t, election.Options{Value: "old"})
			p.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Match: writes, Before: arrives, Late: true})
			err := l.Proclaim(timeout(t, time.Second, errEnough), "first")
			require.ErrorIs(t, err, errEnough)
			require.NotErrorIs(t, err, lease.ErrLost)
			require.ErrorContains(t, err, `election: proclaim in "x":`)
			require.Equal(t, []string{"old"}, values(p.srv))
			time.Sleep(time.Second)
			require.NoError(t, l.Proclaim(t.Context(), "second"))
			time.Sleep(time.Minute)
			require.Equal(t, []string{"second"}, values(p.srv))
			require.NoError(t, l.Err())
		})
	}
}

// An error of Proclaim says whether the value may be the new one.
func TestLeadership_Proclaim_saysWhatIsUnknown(t *testing.T) {
	denied := fakeetcd.Fault{Err: rpctypes.ErrGRPCPermissionDenied}
	for name, tc := range map[string]struct {
		lose    fakeetcd.Message // of the first attempt
		then    fakeetcd.Fault   // of the others
		asked   bool             // to release, before the others arrive
		want    error
		value   string
		unknown bool
	}{
		"answer lost":                    {lose: fakeetcd.Answer, value: "new"},
		"denied":                         {then: denied, want: rpctypes.ErrPermissionDenied, value: "old"},
		"request lost, then denied":      {lose: fakeetcd.Request, then: denied, want: rpctypes.ErrPermissionDenied, value: "old", unknown: true},
		"answer lost, then denied":       {lose: fakeetcd.Answer, then: denied, want: rpctypes.ErrPermissionDenied, value: "new", unknown: true},
		"no answer":                      {then: fakeetcd.Fault{Lose: fakeetcd.Answer}, want: errEnough, value: "new", unknown: true},
		"asked to release":               {asked: true, want: lease.ErrAskedToRelease, value: "old"},
		"request lost, asked to release": {lose: fakeetcd.Request, asked: true, want: lease.ErrAskedToRelease, value: "old"},
	} {
		bubbleOf(t, name, func(t *testing.T, p *process) {
			other := p.join(t)
			l := p.leads(t, election.Options{Value: "old"})
			if tc.lose != fakeetcd.None {
				p.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Match: writes, Lose: tc.lose, Err: fakeetcd.ErrUnavailable})
			}
			if tc.then.Match = writes; tc.asked {
				tc.then.OnRequest = sync.OnceFunc(func() { other.release(t) })
			}
			p.c.Inject(fakeetcd.Txn, tc.then)
			err := l.Proclaim(timeout(t, time.Second, errEnough), "new")
			require.ErrorIs(t, err, tc.want)
			require.Equal(t, tc.unknown, strings.HasSuffix(fmt.Sprint(err), "; the value may be the new one"), "%v", err)
			require.Equal(t, tc.asked, l.Err() != nil)
			now, err := election.Current(t.Context(), other.c.Client, "x")
			require.NoError(t, err)
			require.Equal(t, tc.value, now.Value)
		})
	}
}

// Proclaim finds a loss that no watch has reported yet, and never writes to another's key.
func TestLeadership_Proclaim_guarded(t *testing.T) {
	all := maps.Clone(losses)
	delete(all, "cut off")
	all["another's"] = loss{func(p *process, key string) { p.srv.Delete(key); p.srv.Put(key, "theirs") }, lease.ReasonKeyDeleted}
	all["overwritten, the same value"] = loss{func(p *process, key string) { p.srv.Put(key, "mine") }, lease.ReasonKeyOverwritten}
	for name, loss := range all {
		bubbleOf(t, name, func(t *testing.T, p *process) {
			l := p.leads(t, election.Options{Value: "old"}) // the key is not watched yet
			loss.happens(p, l.Key())
			left := values(p.srv)
			requireLost(t, l.Proclaim(t.Context(), "mine"), loss.reason)
			require.Equal(t, left, values(p.srv))
			requireLost(t, context.Cause(l.Context()), loss.reason)
			requireLost(t, l.Resign(t.Context()), loss.reason)
		})
	}
}

// Concurrent calls of Proclaim are carried out one after the other. A call that waits ends with its context.
func TestLeadership_Proclaim_twoAtATime(t *testing.T) {
	bubble(t, func(t *testing.T, p *process) {
		l := p.leads(t, election.Options{Value: "old"})
		p.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Match: writes, Before: time.Second})
		first := inBackground(func() error { return l.Proclaim(t.Context(), "first") })
		first.requireWaiting(t)
		require.ErrorIs(t, l.Proclaim(timeout(t, time.Second/2, errEnough), "not sent"), errEnough)
		second := inBackground(func() error { return l.Proclaim(t.Context(), "second") })
		third := inBackground(func() error { return l.Proclaim(t.Context(), "third") })
		for _, a := range []*action{first, second, third} {
			require.NoError(t, a.result(t))
		}
		require.Len(t, slices.DeleteFunc(p.c.Calls(fakeetcd.Txn), func(c fakeetcd.Call) bool { return !writes(c) }), 1+3)
		require.NotEqual(t, second.took, third.took)
	})
}

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
