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
