package mix_test

import (
	"flag"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/safety/check"
	"github.com/leasefence/leasefence/integration/safety/mix"
)

// TestMain does not look for goroutines that are left: Run does.
func TestMain(m *testing.M) {
	etcdproc.Serve()
	mix.Serve()
	os.Exit(m.Run())
}

var (
	duration  = flag.Duration("duration", -1, "of the mix in TestSafety, which does nothing without it; a round that has begun is finished")
	seed      = flag.Uint64("seed", rand.Uint64(), "of the random choices of TestSafety; default: a new one each time")
	first     = flag.Bool("first", false, "stop TestSafety after the first round with a violation")
	histories = flag.String("histories", "", "keep all histories of TestSafety in this `folder`; default: only those with violations, in a temporary folder")
)

// TestSafety is make safety and make soak.
func TestSafety(t *testing.T) {
	if *duration == -1 { // the default
		return
	}
	require.Positive(t, *duration)
	opts := mix.Options{Seed: *seed, Duration: *duration, First: *first, KeepAll: *histories != ""}
	var err error
	if opts.KeepAll {
		opts.Dir, err = filepath.Abs(*histories)
		require.NoError(t, os.MkdirAll(opts.Dir, 0o750))
	} else {
		opts.Dir, err = os.MkdirTemp("", "safety") //nolint:usetesting // the histories with violations outlive the test
	}
	require.NoError(t, err)
	t.Logf("seed %d, %v, histories in %s", opts.Seed, opts.Duration, opts.Dir)
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r := mix.Run(ctx, t, opts)
	t.Log(r)
	for _, h := range r.Histories {
		t.Logf("go -C integration run ./safety check %s", h)
		t.Logf("go -C integration run ./safety trace %s > %s.trace.json", h, h)
	}
	if len(r.Histories) == 0 {
		require.NoError(t, os.RemoveAll(opts.Dir))
	}
	assert.Empty(t, r.Missed(), "too little was done")
	assert.Empty(t, r.Violations)
}

// run runs one round that does a bit of everything, and a restore.
func run(t *testing.T, opts mix.Options) *mix.Report {
	t.Helper()
	opts.Seed, opts.Dir, opts.Duration, opts.Small = 1, t.TempDir(), 5*time.Second, true
	r := mix.Run(t.Context(), t, opts)
	t.Log(r)
	return r
}

func TestRun_findsNothing(t *testing.T) {
	r := run(t, mix.Options{})
	require.Empty(t, r.Violations)
	require.Empty(t, r.Histories, "a clean history is deleted")
	require.NotEmpty(t, r.Missed(), "a few seconds are not enough")
	for _, missed := range r.Missed() {
		require.NotContains(t, missed, check.OfRestore, "the restore was noticed in each possible way")
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
