package mix_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/safety/mix"
)

func TestMain(m *testing.M) {
	etcdproc.Serve()
	mix.Serve()
	etcdtest.Main(m)
}

// small returns options for a run of one round that still does a bit of everything.
func small(t *testing.T, round time.Duration) mix.Options {
	t.Helper()
	return mix.Options{
		Seed: 1, Dir: t.TempDir(), Duration: round, Round: round, Clients: 4, Workers: 4, Holders: 1, Progress: t.Output(),
	}
}

func run(t *testing.T, opts mix.Options) *mix.Report {
	t.Helper()
	r, err := mix.Run(t.Context(), opts)
	require.NoError(t, err)
	t.Log(r)
	return r
}

func requireViolated(t *testing.T, r *mix.Report, invariants ...string) {
	t.Helper()
	found := map[string]bool{}
	for _, v := range r.Violations {
		found[v.Invariant] = true
	}
	for _, i := range invariants {
		require.True(t, found[i], "%s is not among %v", i, r.Violations)
	}
	require.NotEmpty(t, r.Histories, "the history of a violation is kept")
	require.FileExists(t, r.Histories[0])
}

func TestRun_findsNothing(t *testing.T) {
	opts := small(t, 6*time.Second)
	opts.Peer = time.Second
	r := run(t, opts)
	require.Empty(t, r.Violations)
	require.Empty(t, r.Histories, "a clean history is deleted")
	c := r.Counts
	for _, n := range []int{c.Faults, c.Acquisitions, c.Writes} {
		require.Positive(t, n, "%+v", c)
	}
	require.Positive(t, r.Peer.Acquisitions)
	require.NotEmpty(t, r.Missed(mix.Floors()), "a few seconds are not enough")
}

func TestRun_findsAResourceThatIgnoresTokensAndAKeyThatIsLeft(t *testing.T) {
	opts := small(t, 5*time.Second)
	opts.Saboteur.ForgetToken, opts.Saboteur.Litter = true, true
	requireViolated(t, run(t, opts), "I1", "I7")
}

func TestRun_findsAHandleThatIsLiveAfterItsEnd(t *testing.T) {
	opts := small(t, 2*time.Second)
	opts.Saboteur.FalseLive = true
	requireViolated(t, run(t, opts), "I3")
}
