package security_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/lease"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

const (
	// shortTTL is for leases that are to be lost by their deadline, after they were held for a while on a busy machine.
	shortTTL = 4 * time.Second
	// longTTL is for those that are to be renewed, a few times in a test.
	longTTL = 6 * time.Second
	// patience bounds what a test waits for; it is far longer than anything takes.
	patience = 30 * time.Second
)

// bounded is a context that ends when the test takes far too long.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// newSession is a session that the test's cleanup closes.
func newSession(t *testing.T, client *clientv3.Client, opts lease.Options) *lease.Session {
	t.Helper()
	s, err := lease.NewSession(bounded(t), client, opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Second)
		defer cancel()
		_ = s.Close(ctx) // the test may have cut it off
	})
	return s
}

// mustLock takes a lock that is free or about to be.
func mustLock(t *testing.T, s *lease.Session, name string) *lease.Lock {
	t.Helper()
	l, err := s.Lock(bounded(t), name)
	require.NoError(t, err)
	return l
}

// awaitEnd waits for the end of a handle's context and returns its cause.
func awaitEnd(t *testing.T, ctx context.Context) error { //nolint:revive // the test comes first in a test's helpers
	t.Helper()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(patience):
		require.FailNow(t, "the handle did not end")
		return nil
	}
}

// lostFor checks that an error is a typed loss with the reason.
func lostFor(t *testing.T, err error, want lease.Reason) {
	t.Helper()
	require.ErrorIs(t, err, lease.ErrLost)
	lost, ok := errors.AsType[*lease.LostError](err)
	require.True(t, ok, "a *LostError in %v", err)
	require.Equal(t, want, lost.Reason, "%v", err)
}

// must fails the test on an error of a call whose answer does not matter.
func must(t *testing.T, _ any, err error) {
	t.Helper()
	require.NoError(t, err)
}

// contains reports whether an error's text has another in it.
func contains(err error, text string) bool { return err != nil && strings.Contains(err.Error(), text) }
