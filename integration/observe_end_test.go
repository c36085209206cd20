package integration_test

import (
	"bytes"
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
)

// Who breaks out of the loop, whose context ends or who is refused leaves nothing running, though the client lives on.
// It counts goroutines, so nothing runs beside it.
func TestObserve_leavesNothing(t *testing.T) {
	srv := etcdtest.Start(t, etcdtest.Options{})
	proxy := faults.NewProxy(t, srv.Endpoint())
	client := srv.Client(t, etcdtest.Via(proxy.Addr()))
	r := newRole(t, client, "n")
	l := r.leads(t)
	before := goleak.IgnoreCurrent()
	for range 20 {
		for seen, err := range election.Observe(bounded(t), client, "n") {
			require.NoError(t, err)
			require.Equal(t, l, seen)
			break
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		for _, err := range election.Observe(ctx, client, "n") {
			require.NoError(t, err)
		}
		cancel()
		for _, err := range election.Observe(t.Context(), client, "n/") {
			require.Error(t, err)
		}
	}
	require.NoError(t, goleak.Find(before))

	// The client keeps a stream of watches that was asked for in vain until another watch takes it: the next one does.
	proxy.Refuse()
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		for seen, err := range election.Observe(ctx, client, "n") {
			require.FailNow(t, "nobody can be reached", "%v, %v", seen, err)
		}
		cancel()
	}
	proxy.Restore()
	for seen, err := range election.Observe(bounded(t), client, "n") {
		require.NoError(t, err)
		require.Equal(t, l, seen)
		break
	}
	require.Eventually(t, func() bool {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		return !bytes.Contains(stacks, []byte("watchGRPCStream")) && !bytes.Contains(stacks, []byte("leasefence/election."))
	}, patience, 10*time.Millisecond)
}

func TestObserve_isDenied(t *testing.T) {
	t.Parallel()
	srv, root := startWithAuth(t, nil,
		permission{"n/", clientv3.PermReadWrite}, permission{"m/", clientv3.PermReadWrite})
	client := srv.Client(t, user("app"))
	r := newRole(t, root, "n")
	l := r.leads(t)

	err := observe(t, client, "other").ended(t)
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	require.ErrorContains(t, err, `election: observe "other": `)
	_, err = election.Current(bounded(t), client, "other")
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	_, err = election.Candidates(bounded(t), client, "other")
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)

	n, m := observe(t, client, "n"), observe(t, client, "m")
	n.sees(t, l)
	m.sees(t, noLeader)
	_, err = root.RoleRevokePermission(bounded(t), "app", "n/", clientv3.GetPrefixRangeEnd("n/"))
	require.NoError(t, err)
	// The server goes on with a watch that it has allowed once. It is found out by and by.
	require.ErrorIs(t, n.ended(t), rpctypes.ErrPermissionDenied)
	other := newRole(t, root, "m")
	m.sees(t, other.leads(t))
}

// The server's token for a stream of watches is as old as the stream. When it has expired the server still serves the
// watches that are there, and refuses new ones.
func TestObserve_tokenExpires(t *testing.T) {
	t.Parallel()
	srv, root := startWithAuth(t, func(cfg *embed.Config) { cfg.AuthTokenTTL = 1 },
		permission{"n/", clientv3.PermRead}, permission{"m/", clientv3.PermRead})
	in := faults.NewInterceptor(t)
	client := srv.Client(t, user("app"), etcdtest.Dial(in.DialOptions()...))
	n, m := newRole(t, root, "n"), newRole(t, root, "m")
	first := observe(t, client, "n")
	first.sees(t, noLeader)
	// The first probe comes too late for the token, and all is opened anew: a watch, a probe, a watch.
	require.NoError(t, in.AwaitSent(bounded(t), faults.Watch, 3))
	want := append(n.turns(t, 3), n.leads(t))
	first.sees(t, want...)
	second := observe(t, client, "m")
	second.sees(t, noLeader)
	second.sees(t, m.turns(t, 3)...)
	first.seesNoMore(t)
}

func TestObserve_clientIsClosed(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	a, b, other := observe(t, client, "n"), observe(t, client, "m"), observe(t, srv.Client(t), "n")
	for _, o := range []*onlooker{a, b, other} {
		o.sees(t, noLeader)
	}
	require.NoError(t, client.Close())
	require.ErrorContains(t, a.ended(t), `election: observe "n": the etcd client is closed`)
	require.ErrorContains(t, b.ended(t), `election: observe "m": the etcd client is closed`)
	other.sees(t, newRole(t, srv.Client(t), "n").leads(t))
}

// Whoever asks while nobody answers waits for as long as its context lets it.
func TestCurrent_nobodyAnswers(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	proxy := faults.NewProxy(t, srv.Endpoint())
	client := srv.Client(t, etcdtest.Via(proxy.Addr()))
	l := newRole(t, srv.Client(t), "n").leads(t)
	proxy.BlackHole()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := election.Current(ctx, client, "n")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, election.ErrNoLeader)
	proxy.Restore()
	got, err := election.Current(bounded(t), client, "n")
	require.NoError(t, err)
	require.Equal(t, l, got)
}
