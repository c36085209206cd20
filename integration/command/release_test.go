//go:build unix

package command_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
)

// release releases nobody but the holder with the token. A holder of etcd's own packages cannot be asked: the error
// names the other modes.
func TestRelease_refuses(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	contend(t, client, 3600, "job/", "", "")
	p := start(t, addr, "release", "job", "--yes", "--token", "999", "--mode", "now")
	require.Equal(t, 75, p.end(t))
	require.Contains(t, p.stderr.String(), "not held with revision 999")
	require.Empty(t, p.stdout.String())
	p = start(t, addr, "release", "job", "--yes", "--token", "2")
	require.Equal(t, 1, p.end(t))
	require.Contains(t, p.stderr.String(), "cannot be asked: --mode now deletes its key")
	require.Zero(t, start(t, addr, "release", "job", "--yes", "--token", "2", "--mode", "now").end(t))
	require.Empty(t, keys(t, client, "job/"))
}

func TestRelease_waits(t *testing.T) {
	t.Parallel()
	srv := etcdtest.StartCluster(t, 1, etcdtest.Options{}) // a process of its own, so that its metrics count only this test
	token, unlock := stage(t, srv.Client(t))
	p := start(t, srv.Endpoints()[0], "release", "jobs/nightly", "--mode", "wait", "--yes", "--token", token)
	// The command inspects the lock first, which reads the two leases. Release reads the holder's lease while it waits.
	const reads = `grpc_server_started_total{grpc_method="LeaseTimeToLive",grpc_service="etcdserverpb.Lease",grpc_type="unary"}`
	require.Eventually(t, func() bool {
		all, err := etcdproc.Metrics(rig.Bounded(t), http.DefaultClient, "http://"+srv.Endpoints()[0])
		require.NoError(t, err)
		return all[reads] >= 3
	}, patience, 10*time.Millisecond)
	unlock()
	require.Zero(t, p.end(t))
	require.Contains(t, p.stdout.String(), "the holder with token 2 no longer holds the lock")
}
