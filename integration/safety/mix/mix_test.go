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

// run runs one round that does a bit of everything, and a restore.
func run(t *testing.T, opts mix.Options) *mix.Report {
	t.Helper()
	opts.Seed, opts.Dir, opts.Duration, opts.Small, opts.Progress = 1, t.TempDir(), 5*time.Second, true, t.Output()
	r, err := mix.Run(t.Context(), opts)
	require.NoError(t, err)
	t.Log(r)
	return r
}

func TestRun_findsNothing(t *testing.T) {
	r := run(t, mix.Options{})
	require.Empty(t, r.Violations)
	require.Empty(t, r.Histories, "a clean history is deleted")
	require.NotEmpty(t, r.Missed(), "a few seconds are not enough")
	for _, missed := range r.Missed() {
		require.NotContains(t, missed, "restored: ", "the restore was noticed in each possible way")
	}
}

func TestRun_findsAResourceThatIgnoresTokens(t *testing.T) {
	r := run(t, mix.Options{Unfenced: true})
	found := map[int]bool{} // by round; the restore comes after the first
	for _, v := range r.Violations {
		found[v.Round] = found[v.Round] || v.Invariant == "I1"
	}
	require.True(t, found[1] && found[2], "%v", r.Violations)
	require.Len(t, r.Histories, 2, "the histories of violations are kept")
	require.FileExists(t, r.Histories[0])
}
