package k8slock_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/election/k8slock"
	"github.com/leasefence/leasefence/internal/clock"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// host is one that can be suspended and whose boot clock has alarms: as on Linux, one that came due meanwhile goes off when
// the host wakes up.
type host struct {
	began time.Time

	mu     sync.Mutex // guards the fields below
	slept  time.Duration
	alarms map[*bootAlarm]struct{}
	sets   int
}

type bootAlarm struct {
	host *host
	ring func()
	due  time.Duration // on the boot clock
}

// startHost gives the test's process a host, with alarms or without.
func startHost(t *testing.T, alarms bool) *host {
	t.Helper()
	h := &host{began: time.Now(), alarms: make(map[*bootAlarm]struct{})}
	clock.System = clock.Clock{Boot: func() time.Duration {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.now()
	}}
	if alarms {
		clock.System.Alarm = func(ring func()) clock.Alarm { return &bootAlarm{host: h, ring: ring} }
	}
	t.Cleanup(func() {
		synctest.Wait() // timers read it
		clock.System = clock.Clock{}
	})
	return h
}

func (h *host) now() time.Duration { return time.Since(h.began) + h.slept }

// suspend has passed when it returns.
func (h *host) suspend(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.slept += d
	for a := range h.alarms {
		if a.due <= h.now() {
			a.ring()
		}
	}
}

// set is how many alarms are set, and how often any was.
func (h *host) set() (alarms, times int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.alarms), h.sets
}

func (a *bootAlarm) Set(d time.Duration) bool {
	a.host.mu.Lock()
	defer a.host.mu.Unlock()
	a.due = a.host.now() + d
	a.host.alarms[a] = struct{}{}
	a.host.sets++
	return true
}

func (a *bootAlarm) Close() {
	a.host.mu.Lock()
	defer a.host.mu.Unlock()
	delete(a.host.alarms, a)
}

// The server's clock runs on while the host is suspended: a tenure ends when the host wakes up, and where it has no alarms
// half a second later.
func TestLock_suspendedHost(t *testing.T) {
	for what, late := range map[string]time.Duration{"alarms": 0, "no alarms": time.Second / 2} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				host, began := startHost(t, late == 0), time.Now()
				a := newCandidate(t, newServer(t), k8slock.Options{})
				a.create(t)
				work := a.context(t)
				time.Sleep(5*time.Second + 1)
				host.suspend(leaseDuration - margin - 5*time.Second - 2)
				synctest.Wait()
				require.NoError(t, work.Err())

				host.suspend(1)
				<-work.Done()
				requireLost(work, t)
				require.LessOrEqual(t, time.Since(began), 5*time.Second+1+late)
				a.requireNoTenure(t)

				a.update(t)
				work = a.context(t)
				host.suspend(leaseDuration)
				require.NoError(t, a.Update(t.Context(), a.leaderRecord()), "another tenure")
				requireLost(work, t)
			})
		})
	}
}

// While nothing happens nobody looks at the clocks, and a tenure's alarm goes with it.
func TestLock_setsItsAlarmOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := startHost(t, true)
		a := newCandidate(t, newServer(t), k8slock.Options{})
		a.create(t)
		time.Sleep(leaseDuration - margin - 1)
		synctest.Wait()
		alarms, before := host.set()
		require.Equal(t, 1, alarms)
		require.Equal(t, 1, before)
		a.update(t)
		time.Sleep(leaseDuration - margin - 1)
		synctest.Wait()
		_, times := host.set()
		require.LessOrEqual(t, times-before, 2, "for the renewal, and at what was the deadline before it")
		require.NoError(t, a.Update(t.Context(), released()))
		synctest.Wait()
		alarms, _ = host.set()
		require.Zero(t, alarms)
	})
}

// A renewal with a shorter duration brings the deadline forward.
func TestLock_shorterRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := startHost(t, true)
		a := newCandidate(t, newServer(t), k8slock.Options{})
		a.create(t)
		work := a.context(t)
		synctest.Wait() // the alarm is set
		record := a.leaderRecord()
		record.LeaseDurationSeconds = 5
		began := time.Now()
		require.NoError(t, a.Update(t.Context(), record))
		<-work.Done()
		require.Equal(t, 4500*time.Millisecond, time.Since(began))
		requireLost(work, t)
		alarms, _ := host.set()
		require.Zero(t, alarms)
	})
}

// The deadline passes, unseen by any timer, while a renewal is under way: its success comes too late.
func TestLock_renewalAcrossTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := startHost(t, false)
		a := newCandidate(t, newServer(t), k8slock.Options{})
		a.create(t)
		work := a.context(t)
		time.Sleep(leaseDuration - margin - 400*time.Millisecond)
		a.c.Inject(fakeetcd.Txn, fakeetcd.Fault{After: 100 * time.Millisecond})
		time.AfterFunc(50*time.Millisecond, func() { host.suspend(350 * time.Millisecond) })
		require.ErrorIs(t, a.Update(t.Context(), a.leaderRecord()), k8slock.ErrLost)
		requireLost(work, t)
	})
}

// A host that wakes up while a renewal is under way does not lead again by its answer.
func TestLock_isNotRevivedAfterASuspension(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := startHost(t, true)
		a := newCandidate(t, newServer(t), k8slock.Options{})
		a.create(t)
		work := a.context(t)
		time.Sleep(5 * time.Second)
		a.c.Inject(fakeetcd.Txn, fakeetcd.Fault{After: 400 * time.Millisecond})
		updated := make(chan error, 1)
		go func() { updated <- a.Update(t.Context(), a.leaderRecord()) }()
		synctest.Wait()
		began := time.Now()
		host.suspend(leaseDuration)
		<-work.Done()
		require.Zero(t, time.Since(began), "at once")
		require.ErrorIs(t, <-updated, k8slock.ErrLost)
		require.Equal(t, 400*time.Millisecond, time.Since(began))
		require.ErrorIs(t, context.Cause(work), k8slock.ErrLost)
		a.requireNoTenure(t)
	})
}
