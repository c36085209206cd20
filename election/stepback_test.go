package election_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// asked is a leader, "a", a candidate that is asked to step back by the next one, "b", and that one, "c". Before is
// called when b waits and has not been asked yet.
type asked struct {
	srv     *fakeetcd.Server
	a, b, c *process
	leader  *election.Leadership
	waiting *candidate // b
	passing *candidate // c
}

func ask(t *testing.T, before func(*asked)) *asked {
	t.Helper()
	srv := newServer(t)
	s := &asked{srv: srv}
	for _, p := range []**process{&s.a, &s.b, &s.c} {
		*p = newProcess(t, srv, lease.Options{})
	}
	s.leader = s.a.leads(t, election.Options{Value: "a"})
	s.waiting = s.b.waits(t, election.Options{Value: "b"})
	before(s)
	s.passing = s.c.campaign(t.Context(), election.Options{Value: "c", Priority: 1})
	return s
}

// P4: whatever becomes of the request, the candidate stands in the queue once, behind the other.
func TestCampaign_stepsBack(t *testing.T) {
	unavailable := fakeetcd.ErrUnavailable
	late := fakeetcd.Fault{Times: 1, Before: attempt + time.Second, Late: true}
	for name, faults := range map[string][]fakeetcd.Fault{
		"undisturbed":               nil,
		"answer lost":               {{Times: 1, Lose: fakeetcd.Answer, Err: unavailable}},
		"answer lost in silence":    {{Times: 1, Lose: fakeetcd.Answer}},
		"answers lost":              {{Times: 3, Lose: fakeetcd.Answer, Err: unavailable}},
		"request lost":              {{Times: 1, Lose: fakeetcd.Request, Err: unavailable}},
		"request lost in silence":   {{Times: 1, Lose: fakeetcd.Request}},
		"request delayed":           {{Times: 1, Before: time.Second}},
		"request late":              {{Times: 1, Before: attempt + 2*time.Second, Late: true}},
		"both late":                 {{Times: 2, Before: attempt + time.Second, Late: true}},
		"late, and the second slow": {late, {Times: 1, Before: 2 * time.Second}},
		"late, its answer lost":     {late, {Times: 1, Lose: fakeetcd.Answer, Err: unavailable}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := ask(t, func(s *asked) {
					for _, f := range faults {
						f.Match = stepsBack
						s.b.c.Inject(fakeetcd.Txn, f)
					}
				})
				time.Sleep(time.Minute)
				s.waiting.requireWaiting(t)
				require.Equal(t, []string{"a", "c", "b"}, values(s.srv))
				requireOrder(t, s.leader, s.passing, s.waiting)
				time.Sleep(time.Hour)
				require.Empty(t, s.srv.Keys(""))
			})
		})
	}
}

// The first request arrives while the candidate looks at what has become of it: it has stepped back, and nobody has
// deleted its key.
func TestCampaign_stepsBack_asItLooks(t *testing.T) {
	for name, method := range map[string]fakeetcd.Method{"the key": fakeetcd.Get, "the queue": fakeetcd.Txn} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var sent time.Time
				s := ask(t, func(s *asked) {
					s.b.c.Inject(fakeetcd.Txn, fakeetcd.Fault{
						Times: 1, Before: attempt + 2*time.Second, Late: true,
						Match: func(call fakeetcd.Call) bool {
							if stepsBack(call) {
								sent = call.Sent
							}
							return stepsBack(call)
						},
					})
					s.b.c.Inject(method, fakeetcd.Fault{Times: 1, After: 3 * time.Second, Match: func(call fakeetcd.Call) bool {
						return !sent.IsZero() && call.Sent.Sub(sent) >= attempt && !stepsBack(call)
					}})
				})
				time.Sleep(time.Minute)
				s.waiting.requireWaiting(t)
				require.Equal(t, []string{"a", "c", "b"}, values(s.srv))
				requireOrder(t, s.leader, s.passing, s.waiting)
			})
		})
	}
}

// The look before it was not answered, so the request goes out twice: that the second copy finds it done is no sign that
// somebody else did it.
func TestCampaign_stepsBack_inCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := func(call fakeetcd.Call) bool {
			txn := call.Request.(*pb.TxnRequest)
			return len(txn.Compare) == 1 && len(txn.Success) == 2 && txn.Success[1].GetRequestRange() != nil && !stepsBack(call) && !writes(call)
		}
		s := ask(t, func(s *asked) {
			s.b.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Request, Match: looks})
			s.b.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer, Match: stepsBack})
			s.b.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Before: time.Millisecond, Match: stepsBack})
		})
		time.Sleep(time.Minute)
		sent := slices.DeleteFunc(s.b.c.Calls(fakeetcd.Txn), func(call fakeetcd.Call) bool { return !stepsBack(call) })
		require.Len(t, sent, 2)
		require.Equal(t, sent[0].Sent, sent[1].Sent)
		s.waiting.requireWaiting(t)
		require.Equal(t, []string{"a", "c", "b"}, values(s.srv))
		requireOrder(t, s.leader, s.passing, s.waiting)
		time.Sleep(time.Hour)
		require.Empty(t, s.srv.Keys(""))
	})
}

// Whoever has become the owner stays, also if its request to step back arrives then.
func TestCampaign_stepsBack_whenItLeads(t *testing.T) {
	for name, fault := range map[string]fakeetcd.Fault{
		"delayed": {Times: 1, Before: 2 * time.Second},
		"late":    {Times: 1, Before: attempt + 2*time.Second, Late: true},
		"lost":    {Times: 1, Lose: fakeetcd.Request},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fault.Match = stepsBack
				s := ask(t, func(s *asked) { s.b.c.Inject(fakeetcd.Txn, fault) })
				time.Sleep(time.Second)
				require.NoError(t, s.leader.Resign(t.Context()))
				l := s.waiting.wins(t)
				time.Sleep(time.Minute)
				require.NoError(t, l.Err())
				s.passing.requireWaiting(t)
				require.Equal(t, []string{"b", "c"}, values(s.srv))
				requireOrder(t, l, s.passing)
				requireReigns(t, s.srv, "a", "b", "c")
			})
		})
	}
}

// P4, P5: the candidate gives up, or loses its place, while it steps back.
func TestCampaign_stepsBack_andEnds(t *testing.T) {
	for outcome, fault := range map[string]fakeetcd.Fault{
		"request under way": {Before: 2 * time.Second},
		"answer lost":       {Lose: fakeetcd.Answer},
		"request lost":      {Lose: fakeetcd.Request},
		"request late":      {Before: 7 * time.Second, Late: true},
	} {
		for name, end := range map[string]struct {
			do     func(*asked) error
			reason lease.Reason
		}{
			"lease revoked": {func(s *asked) error { return s.srv.Revoke(s.b.s.Status().LeaseID) }, lease.LeaseGone},
			"network cut":   {func(s *asked) error { s.b.c.Cut(); return nil }, lease.DeadlinePassed},
			"key deleted":   {func(s *asked) error { s.srv.Delete(key(s.srv, "b")); return nil }, lease.KeyDeleted},
			"closed":        {func(s *asked) error { return s.b.s.Close(s.b.c.Ctx()) }, lease.SessionClosed},
		} {
			t.Run(name+", "+outcome, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					fault.Match = stepsBack
					s := ask(t, func(s *asked) { s.b.c.Inject(fakeetcd.Txn, fault) })
					time.Sleep(time.Second)
					require.NoError(t, end.do(s))
					requireLost(t, s.waiting.failed(t), end.reason)
					time.Sleep(time.Hour)
					require.Equal(t, []string{"a", "c"}, values(s.srv))
					requireOrder(t, s.leader, s.passing)
				})
			})
		}
	}
}

// P4: neither the place that it leaves nor the one that it takes stays.
func TestCampaign_stepsBack_andGivesUp(t *testing.T) {
	for name, fault := range map[string]fakeetcd.Fault{
		"request under way": {Before: 2 * time.Second},
		"answer lost":       {Lose: fakeetcd.Answer},
		"request lost":      {Lose: fakeetcd.Request},
		"request late":      {Before: 7 * time.Second, Late: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var gives *candidate
				s := ask(t, func(s *asked) {
					p := newProcess(t, s.srv, lease.Options{})
					fault.Match = stepsBack
					p.c.Inject(fakeetcd.Txn, fault)
					gives = p.campaign(timeout(t, 3*time.Second, errEnough), election.Options{Value: "d"})
					time.Sleep(2 * time.Second)
				})
				err := gives.failed(t)
				require.ErrorIs(t, err, errEnough)
				require.NotErrorIs(t, err, lease.ErrLost)
				time.Sleep(time.Hour)
				require.Equal(t, []string{"a", "c", "b"}, values(s.srv))
				requireOrder(t, s.leader, s.passing, s.waiting)
			})
		})
	}
}

// A key planted below the name, or one of a nested name, is no leader: who leads is not taken for a candidate that is
// about to step back, although its key has been written.
func TestCampaign_stepsBack_besideAKeyThatIsOlder(t *testing.T) {
	for name, plant := range map[string]func(*testing.T, *process){
		"nested": func(t *testing.T, p *process) {
			t.Helper()
			l, err := p.s.Lock(t.Context(), "x/y")
			require.NoError(t, err)
			t.Cleanup(func() { _ = l.Unlock(t.Context()) }) // or it goes with its session
		},
		"stray": func(_ *testing.T, p *process) { p.srv.Put("x/stray", "") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := newServer(t)
				plant(t, newProcess(t, srv, lease.Options{}))
				leader, list := rank(t, srv, 0, 0, 0)
				require.NoError(t, leader.Proclaim(t.Context(), "new"))
				require.NoError(t, leader.Transfer(timeout(t, 10*time.Second, errEnough), "c"))
				requireOrder(t, list[2].won(t), list[1])
			})
		})
	}
}

// inTurn has "b" lead, which was asked to step back, together with "c" behind it, when its turn came; "d" has asked.
func inTurn(t *testing.T) (srv *fakeetcd.Server, b *election.Leadership, c, d *candidate) {
	t.Helper()
	srv = newServer(t)
	leader := newProcess(t, srv, lease.Options{}).leads(t, election.Options{Value: "a"})
	p := newProcess(t, srv, lease.Options{})
	first := p.waits(t, election.Options{Value: "b"})
	c = newProcess(t, srv, lease.Options{}).waits(t, election.Options{Value: "c"})
	p.c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Match: stepsBack, Before: 2 * time.Second})
	d = newProcess(t, srv, lease.Options{}).waits(t, election.Options{Value: "d", Priority: 1})
	require.NoError(t, leader.Resign(t.Context()))
	return srv, first.wins(t), c, d
}

// One that was asked becomes the owner, and stays. Those behind it do not wait for it to step back.
func TestCampaign_stepsBack_behindOneThatLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, b, c, d := inTurn(t)
		time.Sleep(10 * time.Second)
		require.Equal(t, []string{"b", "d", "c"}, values(srv))
		requireOrder(t, b, d, c)
	})
}

// The same, and it transfers: it would wait for one that waits for it.
func TestLeadership_Transfer_whenItWasAskedItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b, c, d := inTurn(t)
		require.NoError(t, b.Transfer(timeout(t, 10*time.Second, errEnough), "d"))
		requireOrder(t, d.wins(t), c)
	})
}

// The key that a candidate is about to take is there: it belonged to a leadership whose key somebody has put again.
func TestCampaign_stepsBack_keyIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var planted string
		s := ask(t, func(s *asked) {
			other := key(s.srv, "b")
			planted = other[:len(other)-1] + "1" // the second of its lease
			s.srv.Put(planted, "theirs")
		})
		time.Sleep(time.Minute)
		require.Less(t, len(s.b.c.Calls(fakeetcd.Any)), 50)
		require.Equal(t, []string{"a", "theirs", "c", "b"}, values(s.srv))
		requireOrder(t, s.leader, s.passing, s.waiting)
		require.Equal(t, []string{"theirs"}, values(s.srv))
	})
}

// The same where the outcome of the first request is unknown: it may be its own key. It waits until that can be told,
// and asks now and then.
func TestCampaign_stepsBack_keyIsTakenAndTheRequestLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var planted string
		s := ask(t, func(s *asked) {
			other := key(s.srv, "b")
			planted = other[:len(other)-1] + "1" // the second of its lease
			s.srv.Put(planted, "theirs")
			s.b.c.Inject(fakeetcd.Txn, fakeetcd.Fault{
				Times: 1, Lose: fakeetcd.Request, Err: fakeetcd.ErrUnavailable, Match: stepsBack,
			})
		})
		time.Sleep(time.Minute)
		require.Less(t, len(s.b.c.Calls(fakeetcd.Any)), 1000)
		require.Equal(t, []string{"a", "b", "theirs", "c"}, values(s.srv))
		require.True(t, s.srv.Delete(planted))
		time.Sleep(2 * time.Second)
		require.Equal(t, []string{"a", "c", "b"}, values(s.srv))
		requireOrder(t, s.leader, s.passing, s.waiting)
	})
}
