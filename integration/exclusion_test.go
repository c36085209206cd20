package integration_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/lease"
)

// exclusion looks for two live holders of one name, and for tokens that do not grow.
type exclusion struct {
	t      *testing.T
	enough func(grants, losses int) bool
	stop   context.CancelFunc // called when it is enough

	mu      sync.Mutex // guards the fields below
	holders map[string]*lease.Lock
	grants  int
	losses  int
}

// enter is called as soon as a lock is granted.
func (e *exclusion) enter(l *lease.Lock) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.grants++
	live := l.Context().Err() == nil // looked at before the other's: two that are live were so at this moment
	before := e.holders[l.Name()]
	if !live {
		return
	}
	if before != nil {
		assert.Greater(e.t, l.Token(), before.Token(), "tokens only grow")
		if before.Context().Err() == nil {
			assert.Fail(e.t, "two live holders", "of %s: tokens %s and %s", l.Name(), before.Token(), l.Token())
		}
	}
	e.holders[l.Name()] = l
}

// leave is called right after Unlock, which ends the handle.
func (e *exclusion) leave(l *lease.Lock, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case l.Context().Err() == nil:
		e.t.Errorf("%s is live after Unlock", l.Name())
	case errors.Is(err, lease.ErrLost):
		e.losses++
	case err != nil:
		e.t.Errorf("unlock %s: %v", l.Name(), err)
	}
	if e.enough(e.grants, e.losses) {
		e.stop()
	}
}

// TestLock_exclusionUnderStress is P1 and P2 with everything at once: sessions and goroutines that compete for two
// names, callers that give up at any moment, TryLocks, lost and late messages, and sessions that lose their leases
// because nothing gets through to them, some of them while they hold a lock. (An operator who revokes a lease is not among
// them: what lets the next one in before the holder can know is no promise of ours.)
func TestLock_exclusionUnderStress(t *testing.T) {
	t.Parallel()
	const sessions, goroutines, length = 8, 3, 5 * time.Second
	srv := etcdtest.Start(t, etcdtest.Options{})
	names := []string{"a", "a/b"}
	ctx, stop := context.WithCancel(bounded(t))
	defer stop()
	begin := time.Now()
	enough := func(grants, losses int) bool { return grants > 50 && losses > 1 && time.Since(begin) > length }
	detector := &exclusion{t: t, enough: enough, stop: stop, holders: map[string]*lease.Lock{}}
	var wg sync.WaitGroup
	for n := range sessions {
		rig := newLockRig(t, srv, lease.Options{TTL: minTTL})
		if n%2 == 1 {
			badLine(t, rig.in)
		}
		mute := n%4 == 3
		competitors := goroutines
		if mute {
			goDeaf(t, rig)
			competitors = 1 // another one's request would tell of the loss
		}
		for range competitors {
			wg.Go(func() { compete(ctx, t, rig.Session, names, detector, mute) })
		}
	}
	wg.Wait()
	t.Logf("%d grants, %d lost", detector.grants, detector.losses)
	require.True(t, enough(detector.grants, detector.losses))
	awaitQueue(t, srv, names[0], 0) // those of "a/b" lie below
}

// TestLock_exclusionOfManyGoroutines is P1 and P2 within sessions: each has many goroutines that want few names, over lines
// that lose and delay what enters, lets go and hands over.
func TestLock_exclusionOfManyGoroutines(t *testing.T) {
	t.Parallel()
	const sessions, goroutines, length = 4, 24, 5 * time.Second
	srv := etcdtest.Start(t, etcdtest.Options{})
	names := []string{"a", "b", "b/c", "d"}
	ctx, stop := context.WithCancel(bounded(t))
	defer stop()
	begin := time.Now()
	enough := func(grants, _ int) bool { return grants > 200 && time.Since(begin) > length }
	detector := &exclusion{t: t, enough: enough, stop: stop, holders: map[string]*lease.Lock{}}
	var wg sync.WaitGroup
	for n := range sessions {
		rig := newLockRig(t, srv, lease.Options{TTL: faultTTL, Owner: "one"}) // a place may be inherited
		if n > 0 {
			badLine(t, rig.in)
		}
		for range goroutines {
			wg.Go(func() { compete(ctx, t, rig.Session, names, detector, false) })
		}
	}
	wg.Wait()
	t.Logf("%d grants, %d lost", detector.grants, detector.losses)
	require.True(t, enough(detector.grants, detector.losses))
	for _, name := range names {
		awaitQueue(t, srv, name, 0)
	}
}

// goDeaf lets no renewal through, nor what a watch tells of the session's own keys: the clock alone tells of a loss.
func goDeaf(t *testing.T, rig *lockRig) {
	t.Helper()
	rig.in.Inject(t, faults.Rule{Fault: faults.LoseRequest, Method: faults.LeaseKeepAlive, Silent: true})
	rig.in.Inject(t, faults.Rule{
		Fault: faults.LoseAnswer, Method: faults.Watch, Silent: true,
		Match: func(message any) bool {
			resp, ok := message.(*etcdserverpb.WatchResponse)
			return ok && len(resp.Events) > 0 && strings.Contains(string(resp.Events[0].Kv.Key), "/"+hexOf(rig.leaseID()))
		},
	})
}

// badLine loses and delays some of the messages of a lock.
func badLine(t *testing.T, in *faults.Interceptor) {
	t.Helper()
	for _, match := range []func(any) bool{isEnter, isLeave} {
		sometimes := func(message any) bool { return match(message) && rand.N(10) == 0 }
		in.Inject(t, faults.Rule{Fault: faults.LoseAnswer, Method: faults.Txn, Match: sometimes})
		in.Inject(t, faults.Rule{
			Fault: faults.LateRequest, Method: faults.Txn, Match: sometimes, Delay: 100 * time.Millisecond, Times: 3,
		})
	}
}

// compete takes one of the names again and again, in every way there is. One whose session is mute holds some of its
// locks, and the first for certain, until it loses them.
func compete(ctx context.Context, t *testing.T, s *lease.Session, names []string, detector *exclusion, mute bool) {
	t.Helper()
	first := true
	for ctx.Err() == nil {
		lock := (*lease.Session).Lock
		if rand.N(4) == 0 {
			lock = (*lease.Session).TryLock
		}
		waiting, cancel := context.WithCancel(ctx)
		if rand.N(2) == 0 {
			time.AfterFunc(rand.N(50*time.Millisecond), cancel)
		}
		l, err := lock(s, waiting, names[rand.N(len(names))])
		if err != nil {
			cancel()
			expected := errors.Is(err, lease.ErrLocked) || errors.Is(err, lease.ErrLost) || errors.Is(err, context.Canceled) ||
				errors.Is(err, context.DeadlineExceeded)
			assert.True(t, expected, "%v", err)
			continue
		}
		detector.enter(l)
		work := rand.N(3 * time.Millisecond)
		if mute && (first || rand.N(20) == 0) {
			work = 2 * minTTL // longer than a lease lasts at the server without renewal
		}
		first = false
		select {
		case <-time.After(work):
		case <-l.Context().Done():
		}
		detector.leave(l, l.Unlock(bounded(t))) //nolint:contextcheck // ctx ends before the last lock is let go
		cancel()
	}
}
