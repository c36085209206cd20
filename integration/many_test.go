package integration_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/lease"
)

const (
	// many is how many locks a session of these tests holds.
	many = 2000

	// fewWatches is how many watches a session with many locks may have at the server. It keeps 16; etcd's client never
	// takes back one that was given up before it was confirmed, until it tells of something, and while the locks are
	// taken that can be some more.
	fewWatches = 64
)

// lockMany takes many locks of a session at the same time.
func lockMany(t *testing.T, s *lease.Session) []*lease.Lock {
	t.Helper()
	ctx := bounded(t)
	locks := make([]*lease.Lock, many)
	var wg sync.WaitGroup
	for n := range locks {
		wg.Go(func() {
			var err error
			locks[n], err = s.Lock(ctx, fmt.Sprintf("many/%d", n))
			assert.NoError(t, err)
		})
	}
	wg.Wait()
	require.False(t, t.Failed())
	return locks
}

// live counts the handles that have not ended.
func live(locks []*lease.Lock) (n int) {
	for _, l := range locks {
		if l.Context().Err() == nil {
			n++
		}
	}
	return n
}

// TestLock_lossAmongMany is pain 12 for a session that holds many locks: what an operator does to one key ends that handle
// within a second, and no other.
func TestLock_lossAmongMany(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rig := newLockRig(t, srv, lease.Options{})
	sent := countTraffic(rig.in)
	locks := lockMany(t, rig.Session)
	operator := srv.Client(t)
	for round, lose := range []struct {
		want lease.Reason
		do   func(key string) error
	}{
		{lease.KeyDeleted, func(key string) error { return second2(operator.Delete(bounded(t), key)) }}, // not watched yet
		{lease.KeyOverwritten, func(key string) error { return second2(operator.Put(bounded(t), key, "mine")) }},
		{lease.KeyDeleted, func(key string) error { return second2(operator.Delete(bounded(t), key)) }},
	} {
		victim := locks[len(locks)/2]
		locks = append(locks[:len(locks)/2:len(locks)/2], locks[len(locks)/2+1:]...)
		begin := time.Now()
		require.NoError(t, lose.do(victim.Key()))
		lostFor(t, awaitDone(t, victim), lose.want)
		t.Logf("noticed after %v", time.Since(begin))
		require.Less(t, time.Since(begin), time.Second)
		lostFor(t, victim.Unlock(bounded(t)), lose.want)
		sent.settle()
		require.Equal(t, len(locks), live(locks), "round %d", round)
		require.LessOrEqual(t, sent.watches.Load(), int64(fewWatches))
	}
	require.LessOrEqual(t, sent.requests.Load(), int64(many+2*many/100+200), "not each by itself")

	begin := time.Now()
	srv.Revoke(t, rig.leaseID())
	for _, l := range locks {
		lostFor(t, awaitDone(t, l), lease.LeaseGone)
	}
	t.Logf("all noticed after %v", time.Since(begin))
	require.Less(t, time.Since(begin), time.Second)
}

// TestLock_unlockMany lets many locks go at the same time, some of which others of the session wait for.
func TestLock_unlockMany(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	rig := newLockRig(t, srv, lease.Options{})
	locks := lockMany(t, rig.Session)
	var waiting []*attempt
	for _, l := range locks[:many/10] {
		waiting = append(waiting, goLock(bounded(t), rig.Session, l.Name()).standing(t))
	}
	var wg sync.WaitGroup
	for _, l := range locks {
		wg.Go(func() { assert.NoError(t, l.Unlock(bounded(t))) })
	}
	wg.Wait()
	for n, w := range waiting {
		l := w.granted(t)
		require.Greater(t, l.Token(), locks[n].Token())
		requireHeld(t, srv, l)
	}
	require.Len(t, srv.Keys(t, "many/"), len(waiting))
}

// TestClose_withManyLocks checks that a session with many locks is closed in one commit, and one on a lease that it leaves
// to its owner in few.
func TestClose_withManyLocks(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	for name, commits := range map[string]int64{"own lease": 1, "adopted": many/40 + 2} {
		t.Run(name, func(t *testing.T) {
			in := faults.NewInterceptor(t)
			client := srv.Client(t, etcdtest.Dial(in.DialOptions()...))
			var s *lease.Session
			if name == "adopted" {
				granted, err := client.Grant(bounded(t), 60)
				require.NoError(t, err)
				s = adopt(t, client, granted.ID, lease.Options{})
			} else {
				s = newSession(t, client, lease.Options{})
			}
			locks := lockMany(t, s)
			sent := countTraffic(in)
			sent.settle()
			before, revision := sent.requests.Load(), srv.Revision(t)
			ctx, cancel := context.WithTimeout(bounded(t), 10*time.Second)
			defer cancel()
			require.NoError(t, closed(t, goClose(ctx, s)))
			require.LessOrEqual(t, sent.requests.Load()-before, commits)
			require.LessOrEqual(t, srv.Revision(t)-revision, commits)
			for _, l := range locks {
				lostFor(t, context.Cause(l.Context()), lease.SessionClosed)
			}
			require.Empty(t, srv.Keys(t, "many/"))
		})
	}
}
