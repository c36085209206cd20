package integration_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/lease"
)

// change is a way for a leadership to end.
type change struct {
	times    int
	cause    string // as the leader is told
	possible func(*term) bool
	make     func(*party, *term) (mend func()) // mend is called when another leads
}

var changes = map[string]change{
	"resign": {
		times: 74, cause: "resigned",
		possible: func(*term) bool { return true },
		make:     func(_ *party, tm *term) func() { tm.resign(); return nil },
	},
	"close": { // its session, in order
		times: 6, cause: lease.SessionClosed.String(),
		possible: func(tm *term) bool { return tm.close != nil },
		make:     func(_ *party, tm *term) func() { tm.close(); return nil },
	},
	"revoke": { // its lease, as an operator does
		times: 12, cause: lease.LeaseGone.String(),
		possible: func(*term) bool { return true },
		make: func(p *party, tm *term) func() {
			p.mu.Lock()
			tm.revoked = true
			p.mu.Unlock()
			p.srv.Revoke(p.t, tm.lease)
			return nil
		},
	},
	"partition": {
		times: 4, cause: lease.DeadlinePassed.String(),
		possible: func(*term) bool { return true },
		make:     func(_ *party, tm *term) func() { tm.proxy.BlackHole(); return tm.proxy.Restore },
	},
	"kill": {
		times: 4, cause: "killed",
		possible: func(tm *term) bool { return tm.kill != nil },
		make: func(p *party, tm *term) func() {
			tm.kill()
			p.inAnotherProcess(tm.value + "'") // in its stead
			return nil
		},
	},
}

// Ten candidates, in this process and in others, by Campaign and by Run, and a hundred changes of leader of every kind. At
// no instant are there two live leaders, tokens only grow, and observers are shown every change in order: one that was
// there before all, those that join late, and one that is cut off for some time. One more candidate gives up again and
// again, which is nobody's turn.
//
// An operator who revokes a lease lets the next one in before the leader can know: that pair may overlap.
func TestElection_manyChanges(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	p := newParty(t, srv, "n")
	observers := srv.Client(t)
	link := faults.NewProxy(t, srv.Endpoint())
	shown := map[string]*sightings{
		"steady": goObserve(t, observers, "n"),
		"cut":    goObserve(t, srv.Client(t, etcdtest.Via(link.Addr())), "n"),
	}
	shown["steady"].awaitValue(t, "")
	shown["cut"].awaitValue(t, "")
	for i := range 3 {
		p.inThisProcess(fmt.Sprint("campaign-", i), p.byCampaign)
		p.inThisProcess(fmt.Sprint("run-", i), p.byRun)
		p.inAnotherProcess(fmt.Sprint("process-", i))
	}
	p.inAnotherProcess("process-3")

	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	p.passBy(seed)
	var bag []string
	for kind, c := range changes {
		bag = append(bag, slices.Repeat([]string{kind}, c.times)...)
	}
	slices.Sort(bag)
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(bag), func(i, j int) { bag[i], bag[j] = bag[j], bag[i] })

	joined := map[string]fence.Token{} // who led when they did
	leader := p.await()
	took := map[string]time.Duration{}
	for n := 0; len(bag) > 0; n++ {
		switch n {
		case 20:
			link.BlackHole()
		case 35, 65:
			link.Restore()
		case 45:
			link.Refuse()
		case 50:
			joined["late"], joined["late, beside another"] = leader.token, leader.token
			shown["late"] = goObserve(t, srv.Client(t), "n")
			shown["late, beside another"] = goObserve(t, observers, "n")
		}
		kind := "resign" // one more, if nothing else is possible
		if i := slices.IndexFunc(bag, func(kind string) bool { return changes[kind].possible(leader) }); i >= 0 {
			kind = bag[i]
			bag = slices.Delete(bag, i, i+1)
		}
		began := time.Now()
		mend := changes[kind].make(p, leader)
		next := p.await()
		took[kind] = max(took[kind], time.Since(began))
		require.Greater(t, next.token, leader.token, kind)
		awaitClosed(t, leader.over, "the leader is not told of its end by "+kind)
		require.Equal(t, changes[kind].cause, p.causeOf(leader), kind)
		if mend != nil {
			mend()
		}
		leader = next
	}
	t.Logf("the longest changes of each kind: %v", took)
	p.disband()

	history := leadersOf(t, srv, "n")
	requireGrowing(t, history)
	requireApart(t, p.terms, history)
	for who, s := range shown {
		n := s.requireEnd(t, history)
		t.Logf("%s: %d of %d changes", who, n, len(history))
		if token := joined[who]; token > 0 {
			require.GreaterOrEqual(t, s.all(t)[0].Token, token, who)
		} else {
			require.Len(t, history, n, who)
		}
	}
	requireNothingLeft(t, srv)
}

// requireApart checks that no leadership was live when a later one was, and that all stand in the server's history, in
// their order.
func requireApart(t *testing.T, terms []*term, history []election.Leader) {
	t.Helper()
	terms = slices.SortedFunc(slices.Values(terms), func(a, b *term) int { return cmp.Compare(a.token, b.token) })
	var last, overlap int64
	seen := 0
	for i, tm := range terms {
		n := slices.IndexFunc(history, func(l election.Leader) bool { return l.Token == tm.token })
		require.GreaterOrEqual(t, n, 0, "%s led with %s, says the client alone", tm.value, tm.token)
		require.Equal(t, tm.value, history[n].Value)
		require.Equal(t, tm.lease, history[n].Lease)
		if i > 0 {
			require.Greater(t, tm.token, terms[i-1].token, "a token was used twice")
		}
		if tm.begin == 0 {
			continue
		}
		seen++
		require.Greater(t, tm.begin, last, "%s was live with %s when one before still was", tm.value, tm.token)
		if i > 0 && terms[i-1].revoked {
			overlap = max(overlap, terms[i-1].last-tm.begin)
		}
		if !tm.revoked {
			last = max(last, tm.last)
		}
	}
	t.Logf("the longest overlap with a leader whose lease was revoked: %v", time.Duration(overlap))
	require.Greater(t, seen, len(terms)/2, "most were seen alive")
}
