//go:build unix

package command_test

import (
	"io"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
	waiting := regexp.MustCompile(`grpc_server_started_total{.*grpc_method="LeaseTimeToLive".*} ([3-9]|\d\d)`)
	require.Eventually(t, func() bool { return waiting.MatchString(metrics(t, srv.Endpoints()[0])) }, patience, 10*time.Millisecond)
	unlock()
	require.Zero(t, p.end(t))
	require.Contains(t, p.stdout.String(), "the holder with token 2 no longer holds the lock")
}

func metrics(t *testing.T, endpoint string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(rig.Bounded(t), http.MethodGet, "http://"+endpoint+"/metrics", http.NoBody)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(text)
}
