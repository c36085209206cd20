package network_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

var errGaveUp = errors.New("gave up")

// When the network swallows everything, every call returns when its context ends, and Close leaves no goroutine.
func TestSession_everyCallIsBounded(t *testing.T) {
	t.Parallel()
	rig.Label(t)
	srv := etcdtest.Start(t, etcdtest.Options{})
	direct := srv.Client(t)
	line := rig.NewLine(t, []string{srv.Endpoint()})
	rival := rig.NewSession(t, direct, lease.Options{})
	rig.MustLock(t, rival, "taken")
	s := rig.NewSession(t, line.Client, lease.Options{})
	quick, long := rig.MustLock(t, s, "quick"), rig.MustLock(t, s, "long")
	waiter := make(chan error, 1)
	ctx := rig.Bounded(t)
	go func() {
		_, err := s.Lock(ctx, "taken")
		waiter <- err
	}()
	rig.AwaitQueue(t, direct, "taken", 2)
	line.Each((*faults.Proxy).BlackHole)

	for what, call := range map[string]func(context.Context) error{
		"NewSession": func(ctx context.Context) error {
			_, err := lease.NewSession(ctx, line.Client, lease.Options{})
			return err
		},
		"Adopt": func(ctx context.Context) error {
			_, err := lease.Adopt(ctx, line.Client, s.Status().LeaseID, lease.Options{})
			return err
		},
		"Lock":    func(ctx context.Context) error { _, err := s.Lock(ctx, "n"); return err },
		"TryLock": func(ctx context.Context) error { _, err := s.TryLock(ctx, "n"); return err },
		"Do": func(ctx context.Context) error {
			return s.Do(ctx, "n", func(context.Context, fence.Token) error { return errors.New("called without the lock") })
		},
		"Campaign": func(ctx context.Context) error {
			_, err := election.Campaign(ctx, s, "n", election.Options{})
			return err
		},
		"Current":    func(ctx context.Context) error { _, err := election.Current(ctx, line.Client, "n"); return err },
		"Candidates": func(ctx context.Context) error { _, err := election.Candidates(ctx, line.Client, "n"); return err },
		"Unlock":     quick.Unlock,
	} {
		_ = requireBounded(t, what, call)
	}
	id := s.Status().LeaseID
	require.ErrorContains(t, requireBounded(t, "Close", s.Close), "expires by itself")
	require.ErrorIs(t, rig.Await(t, waiter, "the waiter still waits after Close"), lease.ErrClosed)
	rig.RequireLost(t, context.Cause(long.Context()), lease.ReasonSessionClosed)
	_, err := direct.Revoke(rig.Bounded(t), id) // faster than its expiry
	require.NoError(t, err)
	rig.CloseAll(t, direct, []*lease.Session{rival}, "quick", "long", "taken", "n")
}

// requireBounded checks that a call returns when its context ends, with the context's cause.
func requireBounded(t *testing.T, what string, call func(context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(rig.Bounded(t), 50*time.Millisecond, errGaveUp)
	defer cancel()
	returned := make(chan error, 1)
	go func() { returned <- call(ctx) }()
	err := rig.Await(t, returned, what+" does not return")
	require.ErrorIs(t, err, errGaveUp, what)
	return err
}

// An observer leaves no goroutine behind, though its client lives on, whether the caller breaks out of the loop, its
// context ends or its name is refused. The test counts goroutines, so it does not run in parallel.
func TestObserve_leavesNothing(t *testing.T) {
	srv := etcdtest.Start(t, etcdtest.Options{})
	line := rig.NewLine(t, []string{srv.Endpoint()})
	client, direct := line.Client, srv.Client(t)
	granted, err := direct.Grant(rig.Bounded(t), 3600)
	require.NoError(t, err)
	key := fmt.Sprintf("n/%x", int64(granted.ID))
	put, err := direct.Put(rig.Bounded(t), key, "value", clientv3.WithLease(granted.ID))
	require.NoError(t, err)
	leader := election.Leader{Value: "value", Revision: put.Header.Revision, Key: key, Lease: granted.ID}
	_, err = client.Get(rig.Bounded(t), "n") // connects the client
	require.NoError(t, err)
	look := func() {
		for seen, err := range election.Observe(rig.Bounded(t), client, "n") {
			require.NoError(t, err)
			require.Equal(t, leader, seen)
			break
		}
	}
	before := goleak.IgnoreCurrent()
	for range 20 {
		look()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		for _, err := range election.Observe(ctx, client, "n") {
			require.NoError(t, err)
		}
		cancel()
		for _, err := range election.Observe(t.Context(), client, "n/") {
			require.Error(t, err)
		}
	}
	require.NoError(t, goleak.Find(before))

	// The client keeps a watch stream that it could not open until the next watch uses it.
	line.Each((*faults.Proxy).Refuse)
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		for seen, err := range election.Observe(ctx, client, "n") {
			require.FailNow(t, "no member can be reached", "%v, %v", seen, err)
		}
		cancel()
	}
	line.Heal()
	look()
	rig.Eventually(t, func() bool {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		return !bytes.Contains(stacks, []byte("watchGRPCStream")) && !bytes.Contains(stacks, []byte("leasefence/election."))
	}, func() string { return "an observer still runs" })
}
