package security_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// The role that SECURITY.md gives to services is enough for all that a service does with locks and elections.
func TestRecipe_isEnoughForServices(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ user, prefix string }{
		{"worker", "jobs/"},
		{"nightly", "jobs/nightly/"}, // names below one lock's name
	} {
		t.Run(row.user, func(t *testing.T) {
			t.Parallel()
			srv := startByRecipe(t)
			root := srv.as(t, "root")
			opts := lease.Options{Prefix: row.prefix, TTL: longTTL}
			s, other := newSession(t, srv.as(t, row.user), opts), newSession(t, srv.as(t, row.user), opts)
			locksOf(t, s, other)
			electionOf(t, s, other, srv.as(t, row.user), row.prefix+"role")

			rig.MustLock(t, s, "held") // Close revokes the lease with this key
			require.NoError(t, s.Close(rig.Bounded(t)))
			require.NoError(t, other.Close(rig.Bounded(t)))
			left, err := root.Get(rig.Bounded(t), "", clientv3.WithPrefix())
			require.NoError(t, err)
			require.Empty(t, left.Kvs)
			leases, err := root.Leases(rig.Bounded(t))
			require.NoError(t, err)
			require.Empty(t, leases.Leases)
		})
	}
}

// locksOf does all that a service does with locks.
func locksOf(t *testing.T, s, other *lease.Session) {
	t.Helper()
	first := rig.MustLock(t, s, "n")
	_, err := other.TryLock(rig.Bounded(t), "n")
	require.ErrorIs(t, err, lease.ErrLocked)
	next := rig.Wait(t, other, "n")
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = other.Lock(short, "n") // gives up
	require.ErrorIs(t, err, context.DeadlineExceeded)
	granted := time.Now()
	require.Eventually(t, func() bool { return s.Status().Deadline.Sub(granted) > longTTL }, rig.Patience, 10*time.Millisecond)
	require.NoError(t, context.Cause(first.Context()), "the lock is lost in spite of a renewal")
	require.NoError(t, first.Unlock(rig.Bounded(t)))
	require.NoError(t, rig.Await(t, next, "the waiter was not served").Unlock(rig.Bounded(t)))
	require.NoError(t, s.Do(rig.Bounded(t), "n", func(context.Context, fence.Token) error { return nil }))

	// Concurrent transactions share commits, as nested transactions.
	const many = 100
	locks := make([]*lease.Lock, many)
	var wg sync.WaitGroup
	for i := range locks {
		wg.Go(func() {
			var err error
			locks[i], err = s.Lock(rig.Bounded(t), fmt.Sprintf("many/%d", i))
			assert.NoError(t, err)
		})
	}
	wg.Wait()
	require.False(t, t.Failed())
	renewed := s.Status().Deadline
	require.Eventually(t, func() bool { return s.Status().Deadline.After(renewed) }, rig.Patience, 10*time.Millisecond)
	for _, l := range locks {
		wg.Go(func() { assert.NoError(t, l.Unlock(rig.Bounded(t))) })
	}
	wg.Wait()
}

// electionOf does all that a service does with elections. The name includes the sessions' prefix.
func electionOf(t *testing.T, s, other *lease.Session, client *clientv3.Client, name string) {
	t.Helper()
	a, b := secret("a value", "value of candidate a"), secret("a value", "value of candidate b")
	l, err := election.Campaign(rig.Bounded(t), s, "role", election.Options{Value: a, KeepLead: true})
	require.NoError(t, err)
	next := make(chan *election.Leadership, 1)
	go func() {
		l, err := election.Campaign(rig.Bounded(t), other, "role", election.Options{Value: b, Priority: 1})
		assert.NoError(t, err)
		next <- l
	}()
	rig.AwaitQueue(t, client, name, 2)
	all, err := election.Candidates(rig.Bounded(t), client, name)
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.NoError(t, l.Proclaim(rig.Bounded(t), a+" too"))
	current, err := election.Current(rig.Bounded(t), client, name)
	require.NoError(t, err)
	require.Equal(t, a+" too", current.Value)
	require.NoError(t, l.Transfer(rig.Bounded(t), b))
	leads := <-next
	require.NotNil(t, leads)
	for seen, err := range election.Observe(rig.Bounded(t), client, name) {
		require.NoError(t, err)
		require.EqualValues(t, leads.Token(), seen.Revision)
		break
	}
	require.NoError(t, leads.Resign(rig.Bounded(t)))
	require.NoError(t, election.Run(rig.Bounded(t), s, "role", election.Options{}, func(context.Context, fence.Token) error { return nil }))
}

// The other roles of SECURITY.md, and a user without a role, can do what that page says and no more.
func TestRecipe_keepsOthersOut(t *testing.T) {
	t.Parallel()
	srv := startByRecipe(t)
	root := srv.as(t, "root")
	require.NoError(t, second(root.UserAdd(rig.Bounded(t), "nobody", "nobody")))
	s := newSession(t, srv.as(t, "worker"), lease.Options{})
	l, err := election.Campaign(rig.Bounded(t), s, "role", election.Options{Value: "here"})
	require.NoError(t, err)

	for _, user := range []string{"viewer", "nobody", "nightly"} {
		t.Run(user, func(t *testing.T) {
			client := srv.as(t, user)
			theirs := newSession(t, client, lease.Options{}) // needs no permission
			_, err := theirs.TryLock(rig.Bounded(t), "free")
			require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
			require.ErrorContains(t, err, `lock "free"`)
			_, err = election.Campaign(rig.Bounded(t), theirs, "role", election.Options{})
			require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
			_, err = client.Revoke(rig.Bounded(t), s.Status().LeaseID)
			require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
			_, err = client.KeepAliveOnce(rig.Bounded(t), s.Status().LeaseID)
			require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
			_, err = client.Delete(rig.Bounded(t), l.Key())
			require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
			current, err := election.Current(rig.Bounded(t), client, "jobs/role")
			if user != "viewer" {
				require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
				return
			}
			require.NoError(t, err)
			require.EqualValues(t, l.Token(), current.Revision)
			all, err := election.Candidates(rig.Bounded(t), client, "jobs/role")
			require.NoError(t, err)
			require.Len(t, all, 1)
			for seen, err := range election.Observe(rig.Bounded(t), client, "jobs/role") {
				require.NoError(t, err)
				require.Equal(t, "here", seen.Value)
				break
			}
		})
	}
	_, err = srv.as(t, "worker").Get(rig.Bounded(t), "other/key")
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	near := rig.NewSession(t, srv.as(t, "nightly"), lease.Options{})
	require.NoError(t, rig.MustLock(t, near, "jobs/nightly").Unlock(rig.Bounded(t)))
	require.NoError(t, rig.MustLock(t, near, "jobs/nightly/eu").Unlock(rig.Bounded(t)))
	_, err = near.TryLock(rig.Bounded(t), "jobs/nightly-2")
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	require.NoError(t, context.Cause(l.Context()))
	require.NoError(t, l.Resign(rig.Bounded(t)))
}
