package interop_test

import (
	"bufio"
	"context"
	"fmt"
	"os/exec"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// ourCandidate campaigns on its own session, and resigns by transferring to another candidate if that is not "".
func ourCandidate(t *testing.T, srv *etcdtest.Server, value, to string) interopPeer {
	t.Helper()
	s := rig.NewSession(t, srv.Client(t), lease.Options{})
	return interopPeer{"leasefence", func(ctx context.Context, name string) (interopHold, error) {
		l, err := election.Campaign(ctx, s, name, election.Options{Value: value})
		return heldBy(l, err, func(l *election.Leadership, ctx context.Context) error {
			if to == "" {
				return l.Resign(ctx)
			}
			return l.Transfer(ctx, to)
		})
	}}
}

// stockCandidate campaigns with etcd's concurrency.Election on its own session.
func stockCandidate(t *testing.T, srv *etcdtest.Server, value string) interopPeer {
	t.Helper()
	client := srv.Client(t)
	return interopPeer{"concurrency.Election", func(ctx context.Context, name string) (interopHold, error) {
		e := concurrency.NewElection(newEtcdSession(t, client), name)
		return heldBy(e, e.Campaign(ctx, value), (*concurrency.Election).Resign)
	}}
}

// stockListener observes with concurrency.Election.
func stockListener(t *testing.T, srv *etcdtest.Server, name string) <-chan string {
	t.Helper()
	values := make(chan string, 100)
	ctx, cancel := context.WithCancel(t.Context())
	events := concurrency.NewElection(newEtcdSession(t, srv.Client(t)), name).Observe(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		for resp := range events {
			values <- string(resp.Kvs[0].Value)
		}
	})
	t.Cleanup(func() {
		cancel()
		done.Wait()
	})
	return values
}

// etcdctlListener observes with "etcdctl elect --listen", which prints a key and then its value for each leader.
func etcdctlListener(t *testing.T, path string, srv *etcdtest.Server, name string) <-chan string {
	t.Helper()
	values := make(chan string, 100)
	cmd := exec.Command(path, "--endpoints", srv.Endpoint(), "elect", "--listen", name)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var done sync.WaitGroup
	done.Go(func() {
		out := bufio.NewScanner(stdout)
		for isValue := false; out.Scan(); isValue = !isValue {
			if isValue {
				values <- out.Text()
			}
		}
	})
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		done.Wait()
		_ = cmd.Wait()
	})
	return values
}

// requireLeader checks what our observers and etcd's own show of a leader.
func requireLeader(t *testing.T, srv *etcdtest.Server, key, value string, ours *rig.Observer, theirs map[string]<-chan string) {
	t.Helper()
	kvs := srv.KeyValues(t, key)
	require.Len(t, kvs, 1)
	want := election.Leader{Value: value, Revision: kvs[0].CreateRevision, Key: key, Lease: clientv3.LeaseID(kvs[0].Lease)}
	require.Equal(t, value, string(kvs[0].Value))
	got, err := election.Current(rig.Bounded(t), srv.Client(t), "job")
	require.NoError(t, err)
	require.Equal(t, want, got)
	ours.Sees(t, want)
	for who, values := range theirs {
		for shown := ""; shown != value; {
			shown = rig.Await(t, values, fmt.Sprintf("%s shows %q, want %q", who, shown, value))
		}
	}
}

// Ours and etcd's own candidates lead in the order in which they came. A transfer to one of etcd's own passes ours, which
// enter again at the end; a transfer past one of etcd's own fails. Observers of both sides see each leader, and each value
// that one proclaims, whichever side's code does it, and nothing else.
func TestCampaign_standsInOneOrderWithEtcdsOwnCandidates(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	built, debian := etcdtest.Etcdctl(t), etcdtest.DebianEtcdctl(t)
	observed := rig.Observe(t, srv.Client(t), "job")
	observed.Sees(t, election.Leader{})
	theirs := map[string]<-chan string{
		"concurrency.Election": stockListener(t, srv, "job"),
		"etcdctl":              etcdctlListener(t, built, srv, "job"),
		"etcdctl of Debian":    etcdctlListener(t, debian, srv, "job"),
	}
	ours := func(value string) interopPeer { return ourCandidate(t, srv, value, "") }
	leader := rig.NewSession(t, srv.Client(t), lease.Options{})
	first, err := election.Campaign(rig.Bounded(t), leader, "job", election.Options{Value: "a"})
	require.NoError(t, err)
	requireLeader(t, srv, first.Key(), "a", observed, theirs)
	require.NoError(t, first.Proclaim(rig.Bounded(t), "by us"))
	requireLeader(t, srv, first.Key(), "by us", observed, theirs)
	// An election of etcd's own that is resumed with the leader's lease proclaims for the leader.
	same := newEtcdSession(t, srv.Client(t), concurrency.WithLease(leader.Status().LeaseID))
	require.NoError(t, concurrency.ResumeElection(same, "job", first.Key(), first.Token().Revision()).Proclaim(rig.Bounded(t), "resumed"))
	same.Orphan() // its Close would revoke the lease
	requireLeader(t, srv, first.Key(), "resumed", observed, theirs)
	require.NoError(t, first.Proclaim(rig.Bounded(t), "by us again"))
	requireLeader(t, srv, first.Key(), "by us again", observed, theirs)
	queue := make(map[string]*contender)
	order := []string{"by us again"}
	for _, p := range []struct {
		value string
		interopPeer
	}{
		{"b", ours("b")},
		{"c", stockCandidate(t, srv, "c")},
		{"d", etcdctlPeer(built, srv, "elect", "d")},
		{"e", ours("e")},
		{"f", stockCandidate(t, srv, "f")},
		{"g", ourCandidate(t, srv, "g", "i")},
		{"h", ours("h")},
		{"i", etcdctlPeer(debian, srv, "elect", "i")},
		{"j", ours("j")},
		{"k", etcdctlPeer(built, srv, "elect", "k")},
		{"l", ours("l")},
	} {
		queue[p.value], order = enterQueue(t, srv, p.interopPeer, "job"), append(order, p.value)
		all, err := election.Candidates(rig.Bounded(t), srv.Client(t), "job")
		require.NoError(t, err)
		require.Len(t, all, len(order))
		for i, l := range all {
			require.Equal(t, order[i], l.Value)
		}
	}
	queue["l"].requireWaiting(t)
	for _, behind := range []string{"d", "e", "l"} {
		require.ErrorIs(t, first.Transfer(rig.Bounded(t), behind), election.ErrBlocked)
	}
	require.NoError(t, first.Err())
	require.NoError(t, first.Transfer(rig.Bounded(t), "c"))
	rig.AwaitQueue(t, srv.Client(t), "job", len(order)-1) // b has entered again, before h does

	order = []string{"c", "d", "e", "f", "g", "i", "j", "k", "l", "b", "h"}
	for i, value := range order {
		held := queue[value].await(t)
		for _, later := range order[i+1:] {
			require.False(t, queue[later].done(), "%s leads while %s does", later, value)
		}
		requireLeader(t, srv, held.key, value, observed, theirs)
		queue[value].unlock(t)
	}
	observed.Sees(t, election.Leader{})
	observed.SeesNoMore(t)
	_, err = election.Current(rig.Bounded(t), srv.Client(t), "job")
	require.ErrorIs(t, err, election.ErrNoLeader)
	require.Empty(t, srv.Keys(t, "job/"))
}
