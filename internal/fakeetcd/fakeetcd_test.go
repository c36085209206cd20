package fakeetcd_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// start makes a server and one client for the present bubble. The test fails if the fake or the real client leaves a
// goroutine behind.
func start(t *testing.T) (*fakeetcd.Server, *fakeetcd.Client) {
	t.Helper()
	srv := fakeetcd.New()
	t.Cleanup(srv.Close)
	return srv, srv.NewClient(t.Context())
}

func timeout(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func put(t *testing.T, c *fakeetcd.Client, key, val string, opts ...clientv3.OpOption) int64 {
	t.Helper()
	resp, err := c.Put(t.Context(), key, val, opts...)
	require.NoError(t, err)
	return resp.Header.Revision
}

func grant(t *testing.T, c *fakeetcd.Client, ttl int64) clientv3.LeaseID {
	t.Helper()
	resp, err := c.Grant(t.Context(), ttl)
	require.NoError(t, err)
	return resp.ID
}

func keyNames(srv *fakeetcd.Server, prefix string) []string {
	var names []string
	for _, kv := range srv.Keys(prefix) {
		names = append(names, string(kv.Key))
	}
	return names
}

func TestServer_Close_dropsWhatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, c := start(t)
		c.Inject(fakeetcd.Put, fakeetcd.Fault{Before: time.Hour, Late: true})
		_, err := c.Put(timeout(t, time.Second), "a", "")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		grant(t, c, 60)
		began := time.Now()
		srv.Close()
		srv.Close()
		require.Zero(t, time.Since(began))
		require.Empty(t, srv.Keys(""))
	})
}
