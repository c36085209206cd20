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
