package mix

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/safety/history"
)

// soonOver returns a round in which nothing runs.
func soonOver(t *testing.T) *round {
	t.Helper()
	return &round{run: &run{tape: newTape(t.TempDir())}, number: 3, giveUp: func() {}}
}

func requireComplaint(t *testing.T, r *round, invariant, text string) {
	t.Helper()
	require.Len(t, r.violations, 1)
	require.Equal(t, invariant, r.violations[0].Invariant)
	require.Equal(t, 3, r.violations[0].Round)
	require.Contains(t, r.violations[0].Text, text)
}

func TestRound_complainsOfAWaiterThatIsNotServed(t *testing.T) {
	r := soonOver(t)
	gaveUp := false
	r.giveUp = func() { gaveUp = true }
	r.run.tape.Record(history.Event{Kind: history.Enter, Op: 7, Actor: "client 1/worker 2", Name: "a"})
	r.awaitServed(time.Millisecond)
	requireComplaint(t, r, "I7", "op 7 of client 1/worker 2 for a")
	require.True(t, gaveUp, "the waiters give up, so that the run can end")
}

func TestRound_waitsForAWaiterThatIsServedInTime(t *testing.T) {
	r := soonOver(t)
	r.run.tape.Record(history.Event{Kind: history.Enter, Op: 7})
	served := make(chan struct{})
	go func() {
		defer close(served)
		r.run.tape.Record(history.Event{Kind: history.Grant, Op: 7})
	}()
	r.awaitServed(time.Minute)
	<-served
	require.Empty(t, r.violations)
}

func TestRound_complainsOfAnObserverThatStillSeesALeader(t *testing.T) {
	r := soonOver(t)
	_, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	close(done)
	w := &watcher{name: "client 1/observer of a", stop: stop, done: done}
	r.watchers = []*watcher{w}
	w.see(12, nil)
	r.awaitObservers(t.Context(), time.Millisecond)
	requireComplaint(t, r, "I8", "still sees token 12")

	r.violations = nil
	w.see(0, nil)
	r.awaitObservers(t.Context(), time.Millisecond)
	require.Empty(t, r.violations)
}

func TestRun_complainsOfMemoryThatGrows(t *testing.T) {
	r := soonOver(t)
	r.run.heaps = make([]uint64, 3)
	r.run.checkMemory(r)
	require.Empty(t, r.violations)
	ballast := make([]byte, 80<<20)
	r.run.checkMemory(r)
	runtime.KeepAlive(ballast)
	requireComplaint(t, r, "memory", "on the heap")
}

func TestRun_complainsOfGoroutinesThatStay(t *testing.T) {
	r := soonOver(t)
	r.run.heaps, r.run.routines = []uint64{1 << 40, 1 << 40, 1 << 40}, make([]int, 3)
	var wg sync.WaitGroup
	end := make(chan struct{})
	for range 400 {
		wg.Go(func() { <-end })
	}
	r.run.checkMemory(r)
	close(end)
	wg.Wait()
	requireComplaint(t, r, "memory", "goroutines")
}

func TestRun_goesOnUntilItsFloorsAreReached(t *testing.T) {
	r := &run{tape: newTape(t.TempDir()), report: newReport(Options{}), opts: Options{Duration: time.Hour}}
	require.True(t, r.goesOn(2))
	r.opts.Duration = time.Nanosecond
	require.True(t, r.goesOn(1), "there is at least one round")
	require.False(t, r.goesOn(2), "there are no floors")
	r.opts.Floors = Floors()
	require.False(t, r.goesOn(2), "twice the duration has passed")

	r.tape.Clock += history.Clock(r.tape.Now() - time.Minute) // the run began a minute ago
	r.opts.Duration = 45 * time.Second
	require.True(t, r.goesOn(2))
	r.report.violate(Violation{})
	require.False(t, r.goesOn(2), "it has failed already")
}

// Nothing is written to the key "": etcd would refuse that, and overwrite would retry for ever.
func TestStrike_takesNothingIfNoKeyIsLeft(t *testing.T) {
	s := &strike{nemesis: &nemesis{watch: &keyWatch{}}}
	require.False(t, s.taken(func(*strike, string) bool { return true }, "", 7))
}
