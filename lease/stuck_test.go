package lease_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// stuck is a log handler that does not return before release is closed.
type stuck struct {
	slog.Handler

	release chan struct{}
}

// Enabled implements [slog.Handler].
func (h stuck) Enabled(context.Context, slog.Level) bool {
	<-h.release
	return true
}

// WithAttrs implements [slog.Handler].
func (h stuck) WithAttrs([]slog.Attr) slog.Handler {
	<-h.release
	return h
}

// startStuck is start with a logger that blocks until the test ends.
func startStuck(t *testing.T) *env {
	t.Helper()
	log := stuck{slog.DiscardHandler, make(chan struct{})}
	e := start(t, lease.Options{Logger: slog.New(log)})
	t.Cleanup(func() { close(log.release) })
	return e
}

// Renewals, a new lease and Close do not wait for a log handler either. Close leaves nothing running except the
// caller's handler.
func TestSession_goesOnThoughTheLoggerBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := startStuck(t)
		l := e.lock(t, "a")
		e.at(third - 1)
		e.c.Cut()
		e.at(third + patience) // in jeopardy
		require.Equal(t, lease.StateJeopardy, e.s.Status().State)
		e.c.Restore()
		e.at(3 * ttl)
		requireLive(t, l)
		require.NoError(t, e.srv.Revoke(e.s.Status().LeaseID))
		e.at(4 * ttl)
		e.lock(t, "b")
		closing := time.Now()
		require.NoError(t, e.s.Close(timeout(t, time.Second)))
		require.LessOrEqual(t, time.Since(closing), time.Second)
		require.Empty(t, e.leaseIDs())
	})
}

// deaf is a lease client whose requests ignore their context.
type deaf struct {
	clientv3.Lease

	release chan struct{}
}

// Revoke implements [clientv3.Lease].
func (c deaf) Revoke(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseRevokeResponse, error) {
	<-c.release
	return c.Lease.Revoke(ctx, id)
}

// Close is bounded even if a request is not, and the renewals stop.
func TestSession_Close_isBoundedThoughTheClientBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		e := start(t, lease.Options{}, func(c *fakeetcd.Client) { c.Lease = deaf{c.Lease, release} })
		e.lock(t, "a")
		require.ErrorIs(t, e.s.Close(timeout(t, 5*time.Second)), context.DeadlineExceeded)
		require.Equal(t, 6*time.Second, e.now())
		e.at(2 * ttl)
		require.Empty(t, e.sent(fakeetcd.KeepAliveOnce))
		require.Empty(t, e.leaseIDs())
		close(release)
		require.ErrorIs(t, e.s.Close(t.Context()), context.DeadlineExceeded, "the first call has ended")
	})
}
