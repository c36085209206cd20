// Package rig has what tests on real servers share: locks and waiters, proxies to each server, an
// observer of an election, and waits for events.
package rig

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/lease"
)

// Patience bounds every wait of a scenario. Only a failing test waits that long.
const Patience = 2 * time.Minute

// Bounded returns a context that ends when the test ends, or after [Patience].
func Bounded(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	tb.Cleanup(cancel)
	return ctx
}

// NewSession returns a session that the test's cleanup closes.
func NewSession(tb testing.TB, client *clientv3.Client, opts lease.Options) *lease.Session {
	tb.Helper()
	s, err := lease.NewSession(Bounded(tb), client, opts)
	require.NoError(tb, err)
	tb.Cleanup(func() {
		// Do not wait long for a session that is cut off. A test that cares about the error closes the session itself.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), 2*time.Second)
		defer cancel()
		_ = s.Close(ctx)
	})
	return s
}

// NewProxies returns a proxy to each server, and their addresses.
func NewProxies(tb testing.TB, endpoints []string) (proxies []*faults.Proxy, addrs []string) {
	tb.Helper()
	for _, endpoint := range endpoints {
		p := faults.NewProxy(tb, endpoint)
		proxies, addrs = append(proxies, p), append(addrs, p.Addr())
	}
	return proxies, addrs
}

// Await waits until a channel is closed or delivers a value, and fails the test with what otherwise.
func Await[T any](tb testing.TB, c <-chan T, what string) T {
	tb.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(Patience):
		tb.Fatalf("rig: in %s: %s", Patience, what)
		panic("not reached")
	}
}

// Eventually polls until a state is reached for which there is no event.
func Eventually(tb testing.TB, reached func() bool, what func() string) {
	tb.Helper()
	for deadline := time.Now().Add(Patience); !reached(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("rig: in %s: %s", Patience, what())
		}
	}
}

// AwaitQueue waits until there are n keys below a name.
func AwaitQueue(tb testing.TB, client *clientv3.Client, name string, n int) {
	tb.Helper()
	ctx, got := Bounded(tb), int64(0)
	Eventually(tb, func() bool {
		resp, err := client.Get(ctx, name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		require.NoError(tb, err)
		got = resp.Count
		return got == int64(n)
	}, func() string { return fmt.Sprintf("%d keys in the queue of %q, want %d", got, name, n) })
}

// PutMany executes n operations, a hundred in a transaction.
func PutMany(tb testing.TB, client *clientv3.Client, n int, put func(int) clientv3.Op) {
	tb.Helper()
	for i := 0; i < n; {
		var ops []clientv3.Op
		for ; i < n && len(ops) < 100; i++ {
			ops = append(ops, put(i))
		}
		_, err := client.Txn(Bounded(tb)).Then(ops...).Commit()
		require.NoError(tb, err)
	}
}

// Spread calls do for 0 to n-1, in a number of goroutines at most, and fails the test if do fails.
func Spread(tb testing.TB, goroutines, n int, do func(i int) error) {
	tb.Helper()
	var calls errgroup.Group
	calls.SetLimit(goroutines)
	for i := range n {
		calls.Go(func() error { return do(i) })
	}
	require.NoError(tb, calls.Wait())
}

// MustLock takes a lock that is free or soon will be.
func MustLock(tb testing.TB, s *lease.Session, name string) *lease.Lock {
	tb.Helper()
	l, err := s.Lock(Bounded(tb), name)
	require.NoError(tb, err)
	return l
}

// Wait takes a lock in the background. The channel receives the lock.
func Wait(tb testing.TB, s *lease.Session, name string) <-chan *lease.Lock {
	tb.Helper()
	granted := make(chan *lease.Lock, 1)
	ctx := Bounded(tb)
	go func() {
		l, err := s.Lock(ctx, name)
		if err != nil {
			tb.Errorf("wait for %q: %v", name, err)
			return
		}
		granted <- l
	}()
	return granted
}

// AwaitEnd waits for the end of a handle's context and returns its cause.
func AwaitEnd(tb testing.TB, ctx context.Context) error { //nolint:revive // the test comes first in a test's helpers
	tb.Helper()
	Await(tb, ctx.Done(), "the handle did not end")
	return context.Cause(ctx)
}

// RequireLost checks that an error is a typed loss with the reason.
func RequireLost(tb testing.TB, err error, want lease.Reason) {
	tb.Helper()
	require.ErrorIs(tb, err, lease.ErrLost)
	lost, ok := errors.AsType[*lease.LostError](err)
	require.True(tb, ok, "%v", err)
	require.Equal(tb, want, lost.Reason, "%v", err)
}

// AwaitRenewal waits until a session's lease has been renewed by a request that was sent after the call.
func AwaitRenewal(tb testing.TB, s *lease.Session) {
	tb.Helper()
	began := time.Now()
	Eventually(tb, func() bool {
		st := s.Status()
		return st.Deadline.Sub(began) > st.TTL // the deadline is the request's send time plus the TTL, less the margin
	}, func() string { return "no renewal" })
}

// AwaitState waits until a session's lease is in a state.
func AwaitState(tb testing.TB, s *lease.Session, want lease.State) {
	tb.Helper()
	for st := range s.Changes(Bounded(tb)) {
		if st.State == want {
			return
		}
	}
	tb.Fatalf("rig: the session did not reach the state %v", want)
}

// Observer observes an election in a goroutine.
type Observer struct {
	shown chan election.Leader
	ended chan error // receives the last error, when the iteration has ended
}

// Observe observes until the test ends.
func Observe(tb testing.TB, client *clientv3.Client, name string) *Observer {
	tb.Helper()
	o := &Observer{shown: make(chan election.Leader, 100), ended: make(chan error, 1)} // room for all that a test shows
	ctx, cancel := context.WithCancel(tb.Context())
	var done sync.WaitGroup
	done.Go(func() {
		var last error
		for l, err := range election.Observe(ctx, client, name) {
			if last = err; err == nil { // an error must be the last value
				o.shown <- l
			}
		}
		o.ended <- last
	})
	tb.Cleanup(func() {
		cancel()
		done.Wait()
	})
	return o
}

// Sees checks that a leader is the next one to be shown.
func (o *Observer) Sees(tb testing.TB, want election.Leader) {
	tb.Helper()
	require.Equal(tb, want, Await(tb, o.shown, "no change is shown"))
}

// SeesNoMore checks that no leader has been shown beyond those that Sees has checked.
func (o *Observer) SeesNoMore(tb testing.TB) {
	tb.Helper()
	require.Empty(tb, o.shown)
}

// AwaitEnd waits for the end of the iteration and returns its error.
func (o *Observer) AwaitEnd(tb testing.TB) error {
	tb.Helper()
	return Await(tb, o.ended, "the iteration goes on")
}
