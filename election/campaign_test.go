package election_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// P2, P9: candidates lead in the order in which they came, those of one session too, and all of them stand in etcd's
// queue, where others see them.
func TestCampaign_order(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		p, q := newProcess(t, srv, lease.Options{Owner: "p"}), newProcess(t, srv, lease.Options{Owner: "q"})
		leader := p.leads(t, election.Options{})
		var waiting []*candidate
		for _, by := range []*process{p, p, q, p, q} {
			waiting = append(waiting, by.waits(t, election.Options{}))
		}
		require.Equal(t, []string{"p", "p", "p", "q", "p", "q"}, values(srv), "the session's owner is the default")
		requireOrder(t, leader, waiting...)
		require.Empty(t, srv.Keys(""))
		requireReigns(t, srv, "p", "p", "p", "q", "p", "q")
	})
}

// The handle is what the server has, and is not tied to the context of the campaign.
func TestCampaign_leadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type value struct{}
		srv := newServer(t)
		p := newProcess(t, srv, lease.Options{Era: 3, Prefix: "app/"})
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), value{}, "not for the leader"))
		l, err := election.Campaign(ctx, p.s, "x", election.Options{Value: "v"})
		require.NoError(t, err)
		cancel()
		time.Sleep(5 * time.Second)
		require.NoError(t, l.Err())
		require.NoError(t, context.Cause(l.Context()))
		require.Nil(t, l.Context().Value(value{}))
		require.Equal(t, untilLost-5*time.Second, l.Remaining())

		kv := srv.Keys("")[0]
		require.Equal(t, "v", string(kv.Value))
		require.Equal(t, int64(p.s.Status().LeaseID), kv.Lease)
		require.Equal(t, string(kv.Key), l.Key())
		require.Regexp(t, "^app/x/[0-9a-f]+-c0-", l.Key())
		require.Equal(t, "x", l.Name())
		require.Equal(t, kv.CreateRevision, l.Token().Revision())
		require.EqualValues(t, 3, l.Token().Era())
		held, err := p.c.Txn(t.Context()).If(l.Held()).Commit()
		require.NoError(t, err)
		require.True(t, held.Succeeded)

		below, cancel := context.WithCancel(l.Context())
		defer cancel()
		token, ok := fence.FromContext(below)
		require.True(t, ok)
		require.Equal(t, l.Token(), token)
		got, ok := election.FromContext(below)
		require.True(t, ok)
		require.Same(t, l, got)
		_, ok = election.FromContext(t.Context())
		require.False(t, ok)
	})
}

// P4, P6: a campaign that fails leaves nothing behind, whatever the network did to its requests.
func TestCampaign_givesUp(t *testing.T) {
	unavailable := fakeetcd.ErrUnavailable
	for name, tc := range map[string]struct {
		method   fakeetcd.Method
		fault    fakeetcd.Fault
		priority int
		during   func(*process) // before it gives up
		after    func(*process)
	}{
		"waiting":             {},
		"entering":            {method: fakeetcd.Txn, fault: fakeetcd.Fault{Before: 7 * time.Second}},
		"enters late":         {method: fakeetcd.Txn, fault: fakeetcd.Fault{Before: 18 * time.Second, Late: true}},
		"enters very late":    {method: fakeetcd.Txn, fault: fakeetcd.Fault{Before: 15 * time.Minute, Late: true}},
		"request lost":        {method: fakeetcd.Txn, fault: fakeetcd.Fault{Lose: fakeetcd.Request}},
		"answer lost":         {method: fakeetcd.Txn, fault: fakeetcd.Fault{Lose: fakeetcd.Answer}},
		"answers lost, known": {method: fakeetcd.Txn, fault: fakeetcd.Fault{Lose: fakeetcd.Answer, Err: unavailable}},
		"one answer lost":     {method: fakeetcd.Txn, fault: fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer, Err: unavailable}},
		"about to ask":        {method: fakeetcd.Get, priority: 1, fault: fakeetcd.Fault{Lose: fakeetcd.Request}},
		"asking":              {method: fakeetcd.Txn, priority: 1, fault: fakeetcd.Fault{Match: asks, Lose: fakeetcd.Request}},
		"opening its watch":   {method: fakeetcd.Watch, fault: fakeetcd.Fault{Lose: fakeetcd.Request}},
		"cut off":             {during: func(p *process) { p.c.Cut() }, after: func(p *process) { p.c.Restore() }},
		"after a compaction": {during: func(p *process) {
			p.c.BreakWatches(unavailable)
			p.c.Cut()
			p.srv.Put("other", "")
			p.srv.Delete("other")
			_ = p.srv.Compact(p.srv.Rev()) // what the watches would resume at is gone
			p.c.Restore()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := newServer(t)
				leader := newProcess(t, srv, lease.Options{}).leads(t, election.Options{})
				lower := newProcess(t, srv, lease.Options{}).waits(t, election.Options{Value: "lower"})
				p := newProcess(t, srv, lease.Options{})
				if tc.method == fakeetcd.Txn && tc.fault.Match == nil {
					tc.fault.Match = enters
				}
				p.c.Inject(tc.method, tc.fault)
				c := p.campaign(timeout(t, 4*time.Second, errEnough), election.Options{Priority: tc.priority})
				time.Sleep(2 * time.Second)
				if tc.during != nil {
					tc.during(p)
				}
				c.requireWaiting(t)
				time.Sleep(2 * time.Second)
				synctest.Wait()
				require.False(t, c.waiting(), "it returns when its context ends")
				err := c.failed(t)
				require.ErrorIs(t, err, errEnough)
				require.NotErrorIs(t, err, lease.ErrLost)
				require.ErrorContains(t, err, `election: campaign "x":`)
				p.c.Reset()
				if tc.after != nil {
					tc.after(p)
				}
				time.Sleep(time.Hour)
				require.Len(t, srv.Keys(""), 2)
				require.NotEmpty(t, key(srv, "lower"))
				require.Equal(t, 3, srv.Watchers(), "the two keys, and the leader's once more")
				require.Equal(t, lease.Held, p.s.Status().State)
				requireOrder(t, leader, lower)
			})
		})
	}
}

// A context that has ended before keeps everything from the server.
func TestCampaign_contextHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t, newServer(t), lease.Options{})
		n := len(p.c.Calls(fakeetcd.Any))
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errEnough)
		require.ErrorIs(t, p.campaign(ctx, election.Options{}).failed(t), errEnough)
		require.Len(t, p.c.Calls(fakeetcd.Any), n)
	})
}

// pain 10, P5: one whose place is gone learns it at once and not when its turn comes, and has left the queue.
func TestCampaign_lostWhileWaiting(t *testing.T) {
	for name, tc := range map[string]struct {
		do     func(*testing.T, *process)
		reason lease.Reason
		after  time.Duration
	}{
		"lease revoked": {do: func(t *testing.T, p *process) {
			t.Helper()
			require.NoError(t, p.srv.Revoke(p.s.Status().LeaseID))
		}, reason: lease.LeaseGone},
		"key deleted": {do: func(t *testing.T, p *process) {
			t.Helper()
			require.True(t, p.srv.Delete(key(p.srv, "b")))
		}, reason: lease.KeyDeleted},
		"key overwritten": {do: func(_ *testing.T, p *process) {
			p.srv.Put(key(p.srv, "b"), "b")
		}, reason: lease.KeyOverwritten},
		"session closed": {do: func(t *testing.T, p *process) {
			t.Helper()
			require.NoError(t, p.s.Close(t.Context()))
		}, reason: lease.SessionClosed},
		"cut off": {do: func(_ *testing.T, p *process) {
			p.c.Cut()
		}, reason: lease.DeadlinePassed, after: untilLost - time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := newServer(t)
				leader := newProcess(t, srv, lease.Options{}).leads(t, election.Options{Value: "a"})
				p := newProcess(t, srv, lease.Options{})
				id := p.s.Status().LeaseID
				c := p.waits(t, election.Options{Value: "b"})
				began := time.Now()
				tc.do(t, p)
				lost := lossIn(t, c.failed(t), tc.reason)
				require.Equal(t, tc.after, time.Since(began))
				require.Equal(t, id, lost.LeaseID)
				require.Equal(t, tc.reason == lease.KeyDeleted || tc.reason == lease.KeyOverwritten, lost.Key != "")
				p.c.Restore()
				if tc.reason == lease.SessionClosed {
					require.ErrorIs(t, p.campaign(t.Context(), election.Options{}).failed(t), lease.ErrClosed)
					require.Equal(t, []string{"a"}, values(srv))
					return
				}
				again := p.waits(t, election.Options{Value: "again"}) // on a new lease where the first one is lost
				time.Sleep(2 * time.Minute)
				require.Equal(t, []string{"a", "again"}, values(srv))
				requireOrder(t, leader, again)
			})
		})
	}
}

// A lease that was lost before is replaced, whether that was known or not.
func TestCampaign_afterALoss(t *testing.T) {
	for name, pause := range map[string]time.Duration{"known": third + time.Second, "not known": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newProcess(t, newServer(t), lease.Options{})
				id := p.s.Status().LeaseID
				require.NoError(t, p.srv.Revoke(id))
				time.Sleep(pause)
				l := p.leads(t, election.Options{})
				require.NotEqual(t, id, p.s.Status().LeaseID)
				require.NoError(t, l.Resign(t.Context()))
			})
		})
	}
}

// A refusal ends the campaign, and nothing was left.
func TestCampaign_refused(t *testing.T) {
	for name, match := range map[string]func(fakeetcd.Call) bool{
		"entering": writes, "asking": asks, "stepping back": stepsBack,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := newServer(t)
				leader := newProcess(t, srv, lease.Options{}).leads(t, election.Options{Value: "a"})
				lower := newProcess(t, srv, lease.Options{}).waits(t, election.Options{Value: "b"})
				p := newProcess(t, srv, lease.Options{})
				p.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Match: match, Err: rpctypes.ErrGRPCPermissionDenied})
				c := p.campaign(t.Context(), election.Options{Value: "c", Priority: 1})
				if name == "stepping back" {
					time.Sleep(time.Second)
					newProcess(t, srv, lease.Options{}).campaign(timeout(t, time.Second, nil), election.Options{Priority: 2})
				}
				require.ErrorContains(t, c.failed(t), "permission denied")
				p.c.Reset()
				time.Sleep(time.Minute)
				require.Equal(t, []string{"a", "b"}, values(srv))
				requireOrder(t, leader, lower)
			})
		})
	}
}
