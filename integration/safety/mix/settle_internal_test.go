package mix

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/safety/check"
	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// soonOver returns a round in which nothing runs.
func soonOver(t *testing.T) *round {
	t.Helper()
	report := newReport(1)
	return &round{run: &run{report: report, tape: newTape(t.TempDir())}, number: 4, giveUp: func() {}, pulse: &pulse{}}
}

func requireComplaint(t *testing.T, r *round, invariant, text string) {
	t.Helper()
	require.Len(t, r.report.Violations, 1)
	require.Equal(t, invariant, r.report.Violations[0].Invariant)
	require.Equal(t, 4, r.report.Violations[0].Round)
	require.Contains(t, r.report.Violations[0].Text, text)
}

func TestRound_complainsOfAnObserverThatStillSeesALeader(t *testing.T) {
	r := soonOver(t)
	_, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	close(done)
	w := &watcher{name: "client 1/observer of a", stop: stop, done: done}
	r.watchers = []*watcher{w}
	w.token.Store(12)
	r.awaitObservers(t.Context(), time.Millisecond)
	requireComplaint(t, r, "I8", "still sees token 12")

	r.report.Violations = nil
	w.token.Store(0)
	w.led.Store(13)
	w.seen.Store(12)
	r.awaitObservers(t.Context(), time.Millisecond)
	requireComplaint(t, r, "I8", "has seen had token 12, the last of all 13")

	r.report.Violations = nil
	w.seen.Store(13)
	r.awaitObservers(t.Context(), time.Millisecond)
	require.Empty(t, r.report.Violations)
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
