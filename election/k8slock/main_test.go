package k8slock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/leasefence/leasefence/election/k8slock"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/clock"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

func TestMain(m *testing.M) {
	// The host's boot clock also runs while a bubble's clock stands still, so deadlines would be early.
	clock.System = clock.Clock{}
	goleak.VerifyTestMain(m)
}

const (
	name = "jobs/nightly"
	key  = "/k8slock/" + name

	// client-go's usual durations, and the Lock's.
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
	timeout       = 2 * time.Second
	margin        = time.Second
)

// newServer starts a fake server for a test in a bubble.
func newServer(t *testing.T) *fakeetcd.Server {
	t.Helper()
	srv := fakeetcd.New()
	t.Cleanup(srv.Close)
	return srv
}

// candidate is a Lock, its client and their server.
type candidate struct {
	*k8slock.Lock
	c   *fakeetcd.Client
	srv *fakeetcd.Server
}

func newCandidate(t *testing.T, srv *fakeetcd.Server, opts k8slock.Options) *candidate {
	t.Helper()
	c := srv.NewClient(t.Context())
	l, err := k8slock.New(c.Client, name, opts)
	require.NoError(t, err)
	t.Cleanup(func() { l.RecordEvent("stopped leading") }) // ends a tenure, whose goroutine would outlive the bubble
	return &candidate{l, c, srv}
}

// leaderRecord is the record that an elector with the usual durations writes.
func (c *candidate) leaderRecord() resourcelock.LeaderElectionRecord {
	return resourcelock.LeaderElectionRecord{HolderIdentity: c.Identity(), LeaseDurationSeconds: int(leaseDuration / time.Second)}
}

// released is the record that an elector writes when it releases.
func released() resourcelock.LeaderElectionRecord {
	return resourcelock.LeaderElectionRecord{LeaseDurationSeconds: 1}
}

// create writes a first record, and returns the token.
func (c *candidate) create(t *testing.T) fence.Token {
	t.Helper()
	require.NoError(t, c.Create(t.Context(), c.leaderRecord()))
	return c.token(t)
}

// begins writes a first record, and returns the context of its tenure.
func (c *candidate) begins(t *testing.T) context.Context {
	t.Helper()
	c.create(t)
	return c.context(t)
}

// update reads and writes, as an elector does.
func (c *candidate) update(t *testing.T) {
	t.Helper()
	c.get(t)
	require.NoError(t, c.Update(t.Context(), c.leaderRecord()))
}

func (c *candidate) get(t *testing.T) *resourcelock.LeaderElectionRecord {
	t.Helper()
	record, _, err := c.Get(t.Context())
	require.NoError(t, err)
	return record
}

func (c *candidate) token(t *testing.T) fence.Token {
	t.Helper()
	token, ok := c.Token()
	require.True(t, ok, "a tenure")
	return token
}

// context returns the context of the present tenure.
func (c *candidate) context(t *testing.T) context.Context {
	t.Helper()
	ctx, err := c.NewContext(t.Context())
	require.NoError(t, err)
	return ctx
}

func (c *candidate) requireNoTenure(t *testing.T) {
	t.Helper()
	_, ok := c.Token()
	require.False(t, ok)
	ctx, err := c.NewContext(t.Context())
	require.ErrorIs(t, err, k8slock.ErrNotLeading)
	require.Nil(t, ctx)
}

// requireLost checks that a tenure's context has ended with ErrLost.
func requireLost(ctx context.Context, t *testing.T) {
	t.Helper()
	require.ErrorIs(t, context.Cause(ctx), k8slock.ErrLost)
}

// leaseOfRecord is the lease that the record is attached to, 0 if there is no record.
func leaseOfRecord(srv *fakeetcd.Server) clientv3.LeaseID {
	for _, kv := range srv.Keys(key) {
		return clientv3.LeaseID(kv.Lease)
	}
	return 0
}

// bubble runs a test in its own bubble, with a candidate.
func bubble(t *testing.T, test func(*testing.T, *candidate)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newCandidate(t, newServer(t), k8slock.Options{})) })
}

// bubbleOf is bubble for a sub-test.
func bubbleOf(t *testing.T, name string, test func(*testing.T, *candidate)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { bubble(t, test) })
}

// inBubble runs a sub-test in its own bubble.
func inBubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}
