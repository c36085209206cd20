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

// Candidates lead in the order in which they came, those of one session too, and all of them stand in etcd's
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
		require.Equal(t, untilLost-5*time.Second, time.Until(l.Deadline()))

		kv := srv.Keys("")[0]
		require.Equal(t, "v", string(kv.Value))
		require.Equal(t, int64(p.s.Status().LeaseID), kv.Lease)
		require.Equal(t, string(kv.Key), l.Key())
		require.Regexp(t, "^app/x/[0-9a-f]+-c0-", l.Key())
		require.Equal(t, "app/x", l.Name())
		current, err := election.Current(t.Context(), p.c.Client, l.Name())
		require.NoError(t, err)
		require.Equal(t, l.Key(), current.Key)
		require.Equal(t, kv.CreateRevision, l.Token().Revision())
		require.EqualValues(t, 3, l.Token().Era())
		held, err := p.c.Txn(t.Context()).If(l.IsOwner()).Commit()
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

// A campaign that fails leaves nothing behind, whatever the network did to its requests.
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
				require.Equal(t, lease.StateHeld, p.s.Status().State)
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

// One whose place is gone learns it at once and not when its turn comes, and has left the queue.
func TestCampaign_lostWhileWaiting(t *testing.T) {
	for name, loss := range lossesAndClose {
		if loss.reason == lease.ReasonKeyDeleted {
			continue // it enters again
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := newServer(t)
				leader := newProcess(t, srv, lease.Options{}).leads(t, election.Options{Value: "a"})
				p := newProcess(t, srv, lease.Options{})
				id := p.s.Status().LeaseID
				c := p.waits(t, election.Options{Value: "b"})
				began := time.Now()
				loss.happens(t, p, key(srv, "b"))
				lost := lossIn(t, c.failed(t), loss.reason)
				if loss.reason == lease.ReasonDeadlinePassed {
					require.Equal(t, untilLost-time.Second, time.Since(began))
				} else {
					require.Zero(t, time.Since(began))
				}
				require.Equal(t, id, lost.LeaseID)
				require.Equal(t, loss.reason == lease.ReasonKeyOverwritten, lost.Key != "")
				p.c.Restore()
				if loss.reason == lease.ReasonSessionClosed {
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

// A refusal ends the campaign, and nothing was left. A leader that cannot be asked is waited for.
func TestCampaign_refused(t *testing.T) {
	for name, match := range map[string]func(fakeetcd.Call) bool{"entering": writes, "asking": asks} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := newServer(t)
				leader := newProcess(t, srv, lease.Options{}).leads(t, election.Options{Value: "a"})
				lower := newProcess(t, srv, lease.Options{}).waits(t, election.Options{Value: "b"})
				p := newProcess(t, srv, lease.Options{})
				p.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Match: match, Err: rpctypes.ErrGRPCPermissionDenied})
				c := p.campaign(t.Context(), election.Options{Value: "c", Priority: 1})
				time.Sleep(time.Minute)
				if name == "asking" {
					require.NoError(t, leader.Err())
					requireOrder(t, leader, lower, c)
					return
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

// A candidate whose key is deleted while it waits enters again, once and at the end, whatever becomes of the request.
func TestCampaign_entersAgain(t *testing.T) {
	unavailable := fakeetcd.ErrUnavailable
	for name, fault := range map[string]*fakeetcd.Fault{
		"undisturbed":             nil,
		"answer lost":             {Times: 1, Lose: fakeetcd.Answer, Err: unavailable},
		"answer lost in silence":  {Times: 1, Lose: fakeetcd.Answer},
		"answers lost":            {Times: 3, Lose: fakeetcd.Answer, Err: unavailable},
		"request lost":            {Times: 1, Lose: fakeetcd.Request, Err: unavailable},
		"request lost in silence": {Times: 1, Lose: fakeetcd.Request},
		"request late":            {Times: 1, Before: attempt + 2*time.Second, Late: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := newServer(t)
				leader := newProcess(t, srv, lease.Options{}).leads(t, election.Options{Value: "a"})
				p := newProcess(t, srv, lease.Options{})
				b := p.waits(t, election.Options{Value: "b"})
				c := newProcess(t, srv, lease.Options{}).waits(t, election.Options{Value: "c"})
				if fault != nil {
					fault.Match = writes
					p.c.Inject(fakeetcd.Txn, *fault)
				}
				require.True(t, srv.Delete(key(srv, "b")))
				time.Sleep(time.Minute)
				b.requireWaiting(t)
				require.Equal(t, []string{"a", "c", "b"}, values(srv))
				requireOrder(t, leader, c, b)
				requireReigns(t, srv, "a", "c", "b")
				time.Sleep(time.Hour)
				require.Empty(t, srv.Keys(""))
			})
		})
	}
}

// One that is passed while its own turn comes does not lead: its key and the leader's go in one step.
func TestCampaign_entersAgain_asTheLeaderGoes(t *testing.T) {
	for name, age := range map[string]time.Duration{"guarded": time.Second, "not yet": time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := newServer(t)
				leader := newProcess(t, srv, lease.Options{}).leads(t, election.Options{Value: "a"})
				b := newProcess(t, srv, lease.Options{}).campaign(t.Context(), election.Options{Value: "b"})
				time.Sleep(age)
				c := newProcess(t, srv, lease.Options{}).campaign(t.Context(), election.Options{Value: "c"})
				synctest.Wait()
				require.NoError(t, leader.Transfer(t.Context(), "c"))
				next := c.won(t)
				b.requireWaiting(t)
				requireOrder(t, next, b)
				requireReigns(t, srv, "a", "c", "b")
			})
		})
	}
}

// The server knows when a leader's lease has expired: a candidate that comes after that leads at once.
func TestCampaign_afterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		crashed := newProcess(t, srv, lease.Options{})
		last := crashed.leads(t, election.Options{})
		crashed.c.Cut()
		require.NoError(t, srv.Await(t.Context(), func() bool { return len(srv.Keys("")) == 0 }))

		began := time.Now()
		next := newProcess(t, srv, lease.Options{}).leads(t, election.Options{})
		require.Equal(t, began, time.Now())
		require.Greater(t, next.Token(), last.Token())
		require.ErrorIs(t, last.Err(), lease.ErrLost)
	})
}
