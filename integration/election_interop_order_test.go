package integration_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/lease"
)

// awaitOrder waits until the candidates stand in this order, by their values.
func awaitOrder(t *testing.T, srv *etcdtest.Server, name string, order ...string) {
	t.Helper()
	client := srv.Client(t)
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		all, err := election.Candidates(bounded(t), client, name)
		require.NoError(t, err)
		if slices.Equal(values(all), order) {
			return
		}
		require.True(t, time.Now().Before(deadline), "the order is %q, want %q", values(all), order)
	}
}

// mixedQueue is an election in which some candidates are etcd's own: those with a capital letter. The others are ours, and
// a digit after the letter is their priority. The first leads. It is keyed by the values.
func mixedQueue(t *testing.T, srv *etcdtest.Server, names ...string) (*election.Leadership, map[string]*contender) {
	t.Helper()
	first := newSession(t, srv.Client(t), lease.Options{})
	leader := mustLead(t, first, "job", election.Options{Value: names[0]})
	queue := map[string]*contender{}
	for _, name := range names[1:] {
		queue[name] = enterQueue(t, srv, mixedPeer(t, srv, name), "job")
	}
	return leader, queue
}

func mixedPeer(t *testing.T, srv *etcdtest.Server, name string) interopPeer {
	t.Helper()
	if name[0] >= 'a' {
		opts := election.Options{Value: name}
		if len(name) > 1 {
			opts.Priority = int(name[1] - '0')
		}
		return ourCandidate(t, srv, opts)
	}
	if name[0]%2 == 0 {
		return etcdctlCandidate(etcdtest.Etcdctl(t), srv, name)
	}
	return stockCandidate(t, srv, name)
}

// requireTurns has each of the candidates lead in turn, and nobody else.
func requireTurns(t *testing.T, srv *etcdtest.Server, queue map[string]*contender, order ...string) {
	t.Helper()
	for i, name := range order {
		queue[name].await(t)
		for _, later := range order[i+1:] {
			require.False(t, queue[later].done(), "%s leads while %s does", later, name)
		}
		queue[name].unlock(t)
	}
	history := leadersOf(t, srv, "job")
	requireGrowing(t, history)
	n := len(history) - 1 // nobody
	require.Equal(t, order, values(history[n-len(order):n]))
	require.Empty(t, srv.Keys(t, "job/"))
}

// Etcd's own candidates count as priority 0 and keep their places: who is preferred comes right behind the last of them.
// Where two pass others at the same time, those may change places, so one comes after the other has passed.
func TestCampaign_priorityAmongEtcdsOwnCandidates(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		names, order []string
		joins        string
		then         []string
	}{
		{names: []string{"a", "B", "c", "d5"}, order: []string{"B", "d5", "c"}},
		{names: []string{"a", "b", "C", "d5"}, order: []string{"C", "d5", "b"}},
		{
			names: []string{"a", "b", "C", "d", "D", "e", "f9"}, order: []string{"C", "D", "f9", "b", "d", "e"},
			joins: "g5", then: []string{"C", "D", "f9", "g5", "b", "d", "e"},
		},
	} {
		t.Run(fmt.Sprint(c.names, c.joins), func(t *testing.T) {
			t.Parallel()
			srv := etcdtest.Start(t, etcdtest.Options{})
			leader, queue := mixedQueue(t, srv, c.names...)
			awaitOrder(t, srv, "job", append(c.names[:1:1], c.order...)...)
			if c.joins != "" {
				queue[c.joins] = enterQueue(t, srv, mixedPeer(t, srv, c.joins), "job")
				c.order = c.then
				awaitOrder(t, srv, "job", append(c.names[:1:1], c.order...)...)
			}
			require.NoError(t, leader.Err())
			require.NoError(t, leader.Resign(bounded(t)))
			requireTurns(t, srv, queue, c.order...)
		})
	}
}

func TestLeadership_Transfer_amongEtcdsOwnCandidates(t *testing.T) {
	t.Parallel()
	for to, c := range map[string]struct {
		names, order []string
		blocked      bool
	}{
		"c": {names: []string{"a", "b", "c", "D", "e"}, order: []string{"c", "D", "e", "b"}},
		"C": {names: []string{"a", "b", "C", "D", "e"}, order: []string{"C", "D", "e", "b"}},
		"D": {names: []string{"a", "b", "c", "D", "e"}, order: []string{"D", "e", "b", "c"}},
		"e": {names: []string{"a", "b", "C", "d", "e"}, order: []string{"b", "C", "d", "e"}, blocked: true},
		"F": {names: []string{"a", "b", "C", "d", "F"}, order: []string{"b", "C", "d", "F"}, blocked: true},
	} {
		t.Run(to, func(t *testing.T) {
			t.Parallel()
			srv := etcdtest.Start(t, etcdtest.Options{})
			leader, queue := mixedQueue(t, srv, c.names...)
			err := leader.Transfer(bounded(t), to)
			if c.blocked {
				require.ErrorIs(t, err, election.ErrBlocked)
				require.NoError(t, leader.Err())
				awaitOrder(t, srv, "job", c.names...)
				require.NoError(t, leader.Resign(bounded(t)))
			} else {
				require.NoError(t, err)
			}
			requireTurns(t, srv, queue, c.order...)
		})
	}
}
