package election_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// The handle agrees with the server, and does not depend on the context of the campaign.
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
		require.Regexp(t, "^app/x/[0-9a-f]+-p0-", l.Key())
		require.Equal(t, "app/x", l.Name())
		current, err := election.Current(t.Context(), p.c.Client, l.Name())
		require.NoError(t, err)
		require.Equal(t, l.Key(), current.Key)
		require.Equal(t, kv.CreateRevision, l.Token().Revision())
		require.EqualValues(t, 3, l.Token().Era())
		held, err := p.c.Txn(t.Context()).If(l.IsOwner()).Commit()
		require.NoError(t, err)
		require.True(t, held.Succeeded)
	})
}

// A campaign that fails leaves nothing behind, even if its request to hand over is never answered.
func TestCampaign_givesUp(t *testing.T) {
	for name, tc := range map[string]struct {
		priority int
		method   fakeetcd.Method
		fault    fakeetcd.Fault
	}{
		"waiting":      {},
		"about to ask": {1, fakeetcd.Get, fakeetcd.Fault{Lose: fakeetcd.Request}},
		"asking":       {1, fakeetcd.Txn, fakeetcd.Fault{Match: asks, Lose: fakeetcd.Request}},
	} {
		bubbleOf(t, name, func(t *testing.T, p *process) {
			leader := p.join(t).leads(t, election.Options{})
			lower := p.join(t).waits(t, election.Options{Value: "lower"})
			p.c.Inject(tc.method, tc.fault)
			c := p.campaign(timeout(t, 4*time.Second, errEnough), election.Options{Priority: tc.priority})
			time.Sleep(4 * time.Second)
			synctest.Wait()
			require.False(t, c.waiting(), "Campaign must return when its context ends")
			err := c.failed(t)
			require.ErrorIs(t, err, errEnough)
			require.NotErrorIs(t, err, lease.ErrLost)
			require.ErrorContains(t, err, `election: campaign "x":`)
			p.c.Reset()
			time.Sleep(time.Hour)
			require.Len(t, p.srv.Keys(""), 2)
			require.Equal(t, 3, p.srv.Watchers(), "both watch their own keys, and lower the leader's key")
			requireOrder(t, leader, lower)
		})
	}
}

// A waiting candidate that loses its place returns at once and leaves the queue, unless its key was deleted.
func TestCampaign_lostWhileWaiting(t *testing.T) {
	for name, loss := range losses {
		if loss.reason == lease.ReasonKeyDeleted {
			continue // the candidate enters again
		}
		bubbleOf(t, name, func(t *testing.T, p *process) {
			p.join(t).leads(t, election.Options{Value: "a"})
			c := p.waits(t, election.Options{Value: "b"})
			loss.happens(p, key(p.srv, "b"))
			requireLost(t, c.failed(t), loss.reason)
			p.c.Restore()
			time.Sleep(2 * time.Minute)
			require.Equal(t, []string{"a"}, values(p.srv))
		})
	}
}

// A waiting candidate whose key is deleted enters again, once and at the end, whatever happens to its request.
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
		bubbleOf(t, name, func(t *testing.T, p *process) {
			leader := p.join(t).leads(t, election.Options{Value: "a"})
			b := p.waits(t, election.Options{Value: "b"})
			c := p.join(t).waits(t, election.Options{Value: "c"})
			if fault != nil {
				fault.Match = writes
				p.c.Inject(fakeetcd.Txn, *fault)
			}
			require.True(t, p.srv.Delete(key(p.srv, "b")))
			time.Sleep(time.Minute)
			b.requireWaiting(t)
			require.Equal(t, []string{"a", "c", "b"}, values(p.srv))
			requireOrder(t, leader, c, b)
			requireReigns(t, p.srv, "a", "c", "b")
			time.Sleep(time.Hour)
			require.Empty(t, p.srv.Keys(""))
		})
	}
}

// A candidate that is passed does not take the leader's deletion for its own turn: both keys are deleted in one step.
func TestCampaign_entersAgain_asTheLeaderGoes(t *testing.T) {
	for name, age := range map[string]time.Duration{"watched": time.Second, "not yet": time.Millisecond} {
		bubbleOf(t, name, func(t *testing.T, p *process) {
			leader := p.leads(t, election.Options{Value: "a"})
			b := p.join(t).campaign(t.Context(), election.Options{Value: "b"})
			time.Sleep(age)
			c := p.join(t).campaign(t.Context(), election.Options{Value: "c"})
			synctest.Wait()
			require.NoError(t, leader.Transfer(t.Context(), "c"))
			next := c.won(t)
			b.requireWaiting(t)
			requireOrder(t, next, b)
			requireReigns(t, p.srv, "a", "c", "b")
		})
	}
}

// stalled calls then when a transaction has been answered, before the caller gets the answer. Unlike a fault of the
// fake it gives the answer also to a caller whose context has ended by then.
type stalled struct {
	pb.KVClient

	then func()
}

func (k stalled) Txn(ctx context.Context, r *pb.TxnRequest, opts ...grpc.CallOption) (*pb.TxnResponse, error) {
	resp, err := k.KVClient.Txn(ctx, r, opts...)
	k.then()
	return resp, err
}

// A candidate whose key is deleted at the moment in which its turn comes does not lead, but enters again.
func TestCampaign_entersAgain_asItsTurnComes(t *testing.T) {
	bubble(t, func(t *testing.T, p *process) {
		first := p.join(t).leads(t, election.Options{Value: "a"})
		c := p.waits(t, election.Options{Value: "b"})
		require.NoError(t, first.Proclaim(t.Context(), "a")) // so b reads its key when its turn comes
		p.c.KV = clientv3.NewKVFromKVClient(stalled{p.c.KV.(etcd.Direct).Direct(), sync.OnceFunc(func() {
			p.srv.Delete(key(p.srv, "b"))
			time.Sleep(time.Nanosecond) // until the watch has shown that
		})}, p.c.Client)
		require.NoError(t, first.Resign(t.Context()))
		l := c.wins(t)
		require.Len(t, p.srv.Keys(l.Key()), 1)
		require.NoError(t, l.Resign(t.Context()))
	})
}

// A late request for a place that was deleted leaves no key behind, which would lead without a candidate.
func TestCampaign_entersAgain_beforeALateRequest(t *testing.T) {
	bubble(t, func(t *testing.T, p *process) {
		first := p.join(t).leads(t, election.Options{Value: "a"})
		p.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, OnAnswer: func() { // which says that the queue is not empty
			p.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Match: writes, Before: attempt + 2*time.Second, Late: true})
		}})
		c := p.waits(t, election.Options{Value: "b"})
		time.Sleep(attempt)
		require.True(t, p.srv.Delete(key(p.srv, "b")))
		time.Sleep(time.Minute)
		require.Equal(t, []string{"a", "b"}, values(p.srv))
		require.Equal(t, 3, p.srv.Watchers(), "both watch their own keys, and b the leader's key")
		requireOrder(t, first, c)
	})
}

// Campaign and Run refuse bad input with an error that names the field, the value and the legal range. Nothing is sent.
func TestRun_refusesBadInput(t *testing.T) {
	bubble(t, func(t *testing.T, p *process) {
		n := len(p.c.Calls(fakeetcd.Any))
		lead := func(context.Context, fence.Token) error { panic("lead was called") }
		run := func(s *lease.Session, name string, options ...election.RunOption) error {
			return election.Run(t.Context(), s, name, election.Options{}, lead, options...)
		}
		for want, refused := range map[string]struct {
			s    *lease.Session
			name string
		}{
			"election: session is nil, want a lease.Session": {nil, "x"},
			"election: name is empty, want 1 to 1024 bytes":  {p.s, ""},
			`election: name "a//b" contains "//"`:            {p.s, "a//b"},
		} {
			l, err := election.Campaign(t.Context(), refused.s, refused.name, election.Options{})
			require.EqualError(t, err, want)
			require.Nil(t, l)
			require.EqualError(t, run(refused.s, refused.name), want)
		}
		for want, option := range map[string]election.RunOption{
			"election: option 2 of 2 is nil, want a RunOption":            nil,
			"election: WithStopTimeout is -1s, want 0 (for ever) or more": election.WithStopTimeout(-time.Second, nil),
		} {
			require.EqualError(t, run(p.s, "x", election.WithRejoin(), option), want)
		}
		lead = nil
		require.EqualError(t, run(p.s, "x"), "election: lead is nil, want a function")
		require.Len(t, p.c.Calls(fakeetcd.Any), n)
	})
}

// Current and Candidates return a value as it was set, byte by byte. A value or a priority out of range is refused with
// the field's name and the legal range, and then nothing has changed.
func FuzzCampaign_values(f *testing.F) {
	f.Add("10.0.0.1:80", "10.0.0.2:80", 0)
	f.Add("", "", 1)
	f.Add("\xff\x00", "c5-", 9999)
	f.Add("/", "x/", 10000)
	f.Add("a", strings.Repeat("v", 4096), -1)
	f.Add(strings.Repeat("v", 4097), "a", 0)
	f.Add("a", strings.Repeat("v", 4097), 5)
	f.Fuzz(func(t *testing.T, value, next string, priority int) {
		synctest.Test(t, func(t *testing.T) {
			const owner = "the session's"
			p := newProcess(t, newServer(t), lease.Options{Owner: owner})
			l, err := election.Campaign(t.Context(), p.s, "x", election.Options{Value: value, Priority: priority})
			switch {
			case len(value) > 4096:
				require.EqualError(t, err, fmt.Sprintf("election: Options.Value has %d bytes, want 0 to 4096", len(value)))
			case priority < 0 || priority > 9999:
				require.EqualError(t, err, fmt.Sprintf("election: Options.Priority is %d, want 0 to 9999", priority))
			default:
				require.NoError(t, err)
			}
			if err != nil {
				_, err = election.Current(t.Context(), p.c.Client, "x")
				require.ErrorIs(t, err, election.ErrNoLeader)
				return
			}
			if value == "" {
				value = owner
			}
			leader := election.Leader{Value: value, Revision: l.Token().Revision(), Key: l.Key(), Lease: p.s.Status().LeaseID}
			requireLeader(t, p, leader)

			err = l.Proclaim(t.Context(), next)
			if len(next) > 4096 {
				require.EqualError(t, err, fmt.Sprintf("election: value has %d bytes, want 0 to 4096", len(next)))
			} else {
				require.NoError(t, err)
				leader.Value = next
			}
			requireLeader(t, p, leader)
		})
	})
}

// requireLeader checks the leader with Current and with Candidates.
func requireLeader(t *testing.T, p *process, want election.Leader) {
	t.Helper()
	got, err := election.Current(t.Context(), p.c.Client, "x")
	require.NoError(t, err)
	require.Equal(t, want, got)
	all, err := election.Candidates(t.Context(), p.c.Client, "x")
	require.NoError(t, err)
	require.Equal(t, []election.Leader{want}, all)
}
