package integration_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/lease"
)

func TestMain(m *testing.M) {
	beCandidate() // does not return in a process that is one
	etcdtest.Main(m)
}

// minTTL is the smallest lease that a server with default options grants.
const minTTL = 2 * time.Second

// patience bounds what a test waits for; it is far longer than anything takes.
const patience = 30 * time.Second

// bounded is a context that ends when the test takes far too long.
func bounded(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	tb.Cleanup(cancel)
	return ctx
}

// resolved is opts for one of the test's sessions. With LEASEFENCE_SEPARATE_COMMITS set, every test runs without shared
// commits: nothing that they look at depends on them.
func resolved(opts lease.Options) lease.Options {
	opts.SeparateCommits = opts.SeparateCommits || os.Getenv("LEASEFENCE_SEPARATE_COMMITS") != ""
	return opts
}

// newSession is a session that the test's cleanup closes.
func newSession(tb testing.TB, client *clientv3.Client, opts lease.Options) *lease.Session {
	tb.Helper()
	s, err := lease.NewSession(bounded(tb), client, resolved(opts))
	require.NoError(tb, err)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), patience)
		defer cancel()
		_ = s.Close(ctx) // the test may have cut it off
	})
	return s
}

// mustLock takes a lock that is free or about to be.
func mustLock(tb testing.TB, s *lease.Session, name string) *lease.Lock {
	tb.Helper()
	l, err := s.Lock(bounded(tb), name)
	require.NoError(tb, err)
	return l
}

// awaitDone waits for the end of a handle and returns its cause.
func awaitDone(tb testing.TB, l *lease.Lock) error {
	tb.Helper()
	select {
	case <-l.Context().Done():
		return context.Cause(l.Context())
	case <-time.After(patience):
		require.FailNow(tb, "the handle did not end")
		return nil
	}
}
