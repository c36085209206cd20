package mix

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/safety/check"
	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// TestMain does not look for goroutines that are left: Run does.
func TestMain(m *testing.M) {
	etcdproc.Serve()
	Serve()
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
	opts := Options{Seed: *seed, Duration: *duration, First: *first, KeepAll: *histories != ""}
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
	r := Run(ctx, t, opts)
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

// A round that does a bit of everything, and a restore. In the round one resource ignores tokens, and nothing else is
// wrong.
func TestRun(t *testing.T) {
	r := Run(t.Context(), t, Options{Seed: 1, Dir: t.TempDir(), Duration: 5 * time.Second, Small: true, Unfenced: true})
	t.Log(r)
	require.NotEmpty(t, r.Violations)
	found := regexp.MustCompile(`^` + roundPrefix(1) + `hot: .* was accepted after .*token \d+ \(found by resource\)$`)
	for _, v := range r.Violations {
		require.Equal(t, Violation{"I1", 1, v.Text}, v)
		require.Regexp(t, found, v.Text)
	}
	require.Contains(t, r.String(), fmt.Sprintf("\nviolations: %d\n  I1 ", len(r.Violations)))
	require.Contains(t, r.String(), "\nI1, round 1: "+r.Violations[0].Text+"\n")
	require.Len(t, r.Histories, 1, "the history of violations is kept, and a clean one is deleted")
	require.FileExists(t, r.Histories[0])
	require.NotEmpty(t, r.Missed(), "a few seconds are not enough")
	for _, missed := range r.Missed() {
		require.NotContains(t, missed, check.OfRestore, "the restore was noticed in each possible way")
	}
}

// soonOver returns a round in which nothing runs.
func soonOver(t *testing.T) *round {
	t.Helper()
	report := newReport(1)
	return &round{run: &run{report: report, tape: newTape(t.TempDir())}, number: 4, giveUp: func() {}, pulse: &pulse{}}
}

func TestRun_complainsOfWhatGrows(t *testing.T) {
	r := soonOver(t)
	ballast := make([]byte, 80<<20)
	var wg sync.WaitGroup
	end := make(chan struct{})
	for range 400 {
		wg.Go(func() { <-end })
	}
	r.checkMemory(r)
	runtime.KeepAlive(ballast)
	close(end)
	wg.Wait()
	require.Len(t, r.report.Violations, 2)
	require.Contains(t, r.report.Violations[0].Text, "goroutines")
	require.Contains(t, r.report.Violations[1].Text, "on the heap")
}

func TestRun_goesOnUntilItsFloorsAreReached(t *testing.T) {
	r := soonOver(t).run
	r.opts.Duration = time.Hour
	require.True(t, r.goesOn(2))
	r.opts.Duration = time.Nanosecond
	require.True(t, r.goesOn(1), "there is at least one round")
	require.False(t, r.goesOn(2), "twice the duration has passed")

	r.tape.Clock += history.Clock(r.tape.Now() - time.Minute) // the run began a minute ago
	r.opts.Duration = 45 * time.Second
	require.True(t, r.goesOn(2))
	r.report = enough()
	r.report.count(check.ToldOfRestore, -1)
	require.False(t, r.goesOn(2), "only the restore is missing")
	r.report = newReport(1)
	r.report.violate(1, "I1", "")
	require.False(t, r.goesOn(2), "it has failed already")
}

// Nothing is written to the key "": etcd would refuse that, and overwrite would retry for ever.
func TestStrike_takesNothingIfNoKeyIsLeft(t *testing.T) {
	s := &strike{nemesis: &nemesis{run: &run{watch: &keyWatch{}}}}
	require.False(t, s.taken(func(*strike, string) bool { return true }, "", 7))
}

func TestCloseSession_complainsOfNoSlowServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := fakeetcd.New()
		t.Cleanup(server.Close)
		client := server.NewClient(t.Context())
		opened := func() *lease.Session {
			s, err := lease.NewSession(t.Context(), client.Client, lease.Options{TTL: ttl})
			require.NoError(t, err)
			return s
		}
		slow, busy := opened(), opened()
		client.Inject(fakeetcd.Revoke, fakeetcd.Fault{Before: served})
		require.NoError(t, closeSession(t.Context(), slow))
		client.Reset()
		var wg sync.WaitGroup
		ends := make(chan struct{})
		wg.Go(func() {
			_ = busy.Do(t.Context(), "a", func(context.Context, fence.Token) error {
				<-ends
				return nil
			})
		})
		synctest.Wait()
		require.ErrorContains(t, closeSession(t.Context(), busy), "have not ended")
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.Contains(t, strings.Join(leftGoroutines(soon), ""), "leasefence/lease.")
		close(ends)
		wg.Wait()
		require.Empty(t, leftGoroutines(t.Context()))
	})
}

// A member that is stopped may carry the write out after the operator gave up.
func TestOverwrite_leavesNoKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const key = "a/1-0"
		server := fakeetcd.New()
		t.Cleanup(server.Close)
		client := server.NewClient(t.Context())
		s := struck(t)
		s.etcd = client.Client
		leased, err := s.etcd.Grant(t.Context(), 60)
		require.NoError(t, err)
		_, err = s.etcd.Put(t.Context(), key, "", clientv3.WithLease(leased.ID))
		require.NoError(t, err)
		client.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Before: 3100 * time.Millisecond, Late: true})
		require.False(t, overwrite(s, key))
		require.Empty(t, server.Keys(""))
		require.Len(t, server.History(key), 3, "the key was put twice and deleted once")
	})
}

func TestPulse_recordsASlowCommit(t *testing.T) {
	server := etcdtest.Start(t, etcdtest.Options{})
	proxy := faults.NewProxy(t, server.Endpoint())
	r := soonOver(t)
	r.members = []*clientv3.Client{etcdtest.NewClient(t, []string{proxy.Addr()})}
	r.tape.begin(t, r.number)
	asked := r.tape.Now()
	r.pulse = r.startPulse(t.Context())
	defer r.pulse.end()
	proxy.Answers.Hold()
	require.Eventually(t, func() bool { return r.pulse.wasSlow(asked) }, time.Minute, time.Millisecond)
	proxy.Answers.Pass()
	r.pulse.end()
	require.False(t, r.pulse.wasSlow(r.tape.Now()))
	events := r.tape.end(t)
	require.GreaterOrEqual(t, len(events), 2)
	begun, ended := events[0], events[1] // the fault, which must not last: it would excuse everything after it
	require.Equal(t, []history.Kind{history.Fault, history.Heal}, []history.Kind{begun.Kind, ended.Kind})
	require.Equal(t, "cluster", begun.Target, "it affects all clients")
	require.Equal(t, begun.Fault, ended.Fault)
	require.GreaterOrEqual(t, ended.At-begun.At, slowCommit)
}

// enough returns a report that just reaches all floors.
func enough() *Report {
	r := newReport(1)
	for what, least := range floors() {
		r.count(what, least)
	}
	return r
}

// Each floor counts, and a fault only if it has met something.
func TestReport_Missed(t *testing.T) {
	require.Len(t, allKinds(), 40)
	r := enough()
	require.Empty(t, r.Missed())
	for what := range floors() {
		r.count(what, -1)
		require.Len(t, r.Missed(), 1)
		require.Contains(t, r.Missed()[0], what)
		r.count(what, 1)
	}
	r = newReport(1)
	r.strike(allKinds()[7], false)
	require.Empty(t, r.Counts)
}

func TestMonitor_countsOverRestarts(t *testing.T) {
	var expired atomic.Int64
	member := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, "etcd_debugging_server_lease_expired_total %d\n", expired.Load())
	}))
	defer member.Close()
	m := &monitor{report: newReport(1), http: *member.Client(), counts: map[string]int{}}
	asked := func() int { return m.expired(t.Context(), member.Listener.Addr().String()) }
	for _, n := range []int{2, 5, 1, 1, 3} { // restarted after 5
		expired.Store(int64(n))
		require.Equal(t, n, asked())
	}
	require.Equal(t, 5+3, m.report.Counts[expiries])
	member.Close()
	require.Equal(t, 3, asked(), "it does not answer")
	require.Equal(t, 5+3, m.report.Counts[expiries])
}

// struck returns a fault that ends at once.
func struck(t *testing.T) *strike {
	t.Helper()
	n := &nemesis{run: &run{report: newReport(1), tape: newTape(t.TempDir()), cluster: &etcdtest.Cluster{Cluster: &etcdproc.Cluster{}}}, life: t.Context()}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	return &strike{nemesis: n, ctx: ended, rng: rand.New(rand.NewPCG(1, 2))}
}

func TestDispossess_hitsIfTheClientGotThatError(t *testing.T) {
	server := etcdtest.Start(t, etcdtest.Options{})
	for name, refused := range map[string]error{"that error": rpctypes.ErrFutureRev, "another error": rpctypes.ErrAuthFailed} {
		t.Run(name, func(t *testing.T) {
			c := &client{id: &identity{}, in: faults.NewInterceptor(t)}
			c.etcd = server.Client(t, etcdtest.Dial(c.in.DialOptions()...))
			given := 0
			hit := struck(t).dispossess(c, refused, func(context.Context, *clientv3.Client, string) error {
				_, err := c.etcd.Compact(t.Context(), 1000) // not within 3 s: the server may be slow
				require.ErrorIs(t, err, rpctypes.ErrFutureRev)
				return nil
			}, func(context.Context, *clientv3.Client, string) error {
				given++
				return nil
			})
			require.Equal(t, name == "that error", hit)
			require.Equal(t, 1, given)
		})
	}
}
