package rig

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/lease"
)

// MinTTL is the smallest lease that a server with default options grants.
const MinTTL = 2 * time.Second

// Patience bounds what a scenario waits for; it is far longer than anything takes.
const Patience = 2 * time.Minute

// ServedWithin is how long the last waiter may take to be served once all faults have healed. It is a promise and no
// estimate: a lease that was just renewed and one that a new leader of the cluster has prolonged, and some time to reconnect.
func ServedWithin(ttl time.Duration) time.Duration { return 2*ttl + 3*time.Second }

// Bounded is a context that ends when the test takes far too long.
func Bounded(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	tb.Cleanup(cancel)
	return ctx
}

// NewSession is a session that the test's cleanup closes.
func NewSession(tb testing.TB, client *clientv3.Client, opts lease.Options) *lease.Session {
	tb.Helper()
	s, err := lease.NewSession(Bounded(tb), client, opts)
	if err != nil {
		tb.Fatalf("rig: %v", err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), Patience)
		defer cancel()
		_ = s.Close(ctx) // a test that looks at the error has closed it before
	})
	return s
}

// Await waits for an event that a channel stands for.
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

// Eventually waits until a state is reached for which there is no event.
func Eventually(tb testing.TB, reached func() bool, what func() string) {
	tb.Helper()
	for deadline := time.Now().Add(Patience); !reached(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("rig: in %s: %s", Patience, what())
		}
	}
}
