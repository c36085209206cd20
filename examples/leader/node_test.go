//go:build unix

package main

import (
	"net"
	"net/http"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/leasefence/leasefence/examples/internal/etcdserver"
)

// startEtcd runs a server until the test ends.
func startEtcd(t *testing.T) (endpoint string, client *clientv3.Client) {
	t.Helper()
	s, err := etcdserver.Start(t.Context(), "leader", zap.NewNop())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop()) })
	client, err = clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint()}, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return s.Endpoint(), client
}

// Two processes as they would be deployed, without the demo and without a ledger.
func TestJoin_leadsAndHandsOver(t *testing.T) {
	t.Parallel()
	endpoint, client := startEtcd(t)
	join := func(id string) (*running, string) {
		r := start(t, "-join", "-endpoints", endpoint, "-name", "team/leader", "-id", id, "-http", "127.0.0.1:0", "-ttl", "5s")
		return r, "http://" + r.await(t, `msg=campaigns id=`+id+` http=(\S+)`)[0]
	}
	one, urlOne := join("one")
	token := one.await(t, `level=INFO msg=leads token=(\d+)`)[0]
	resp, err := client.Get(t.Context(), "team/leader/", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Len(t, resp.Kvs, 1)
	require.Equal(t, "one", string(resp.Kvs[0].Value))
	require.EqualValues(t, number(t, token), resp.Kvs[0].CreateRevision)

	two, urlTwo := join("two")
	awaitLeader(t, urlOne, `{"leader":"one","token":"`+token+`","me":true}`)
	awaitLeader(t, urlTwo, `{"leader":"one","token":"`+token+`","me":false}`)
	for _, url := range []string{urlOne, urlTwo} {
		status, body := get(t, url+"/healthz")
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, "ok", body)
	}

	status, body := request(t, http.MethodPost, urlTwo+"/transfer?to=one")
	require.Equal(t, http.StatusConflict, status, "%s", body)
	require.Equal(t, "this process does not lead", body)
	status, body = request(t, http.MethodPost, urlOne+"/transfer?to=nobody")
	require.Equal(t, http.StatusNotFound, status, "%s", body)
	status, _ = get(t, urlOne+"/transfer?to=two")
	require.Equal(t, http.StatusMethodNotAllowed, status)
	awaitLeader(t, urlOne, `{"leader":"one","token":"`+token+`","me":true}`)

	// SIGTERM resigns: the lease of five seconds is not waited for.
	one.signal(t, syscall.SIGTERM)
	next := two.await(t, `level=INFO msg=leads token=(\d+)`)[0]
	require.Greater(t, number(t, next), number(t, token))
	require.Zero(t, one.end(t))
	awaitLeader(t, urlTwo, `{"leader":"two","token":"`+next+`","me":true}`)
	two.signal(t, syscall.SIGINT)
	require.Zero(t, two.end(t))

	resp, err = client.Get(t.Context(), "", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Empty(t, resp.Kvs)
	leases, err := client.Leases(t.Context())
	require.NoError(t, err)
	require.Empty(t, leases.Leases, "a lease was not revoked")
}

// A process whose work fails ends, and lets the lead go first.
func TestJoin_endsWhenItsWorkFails(t *testing.T) {
	t.Parallel()
	endpoint, client := startEtcd(t)
	r := start(t, "-join", "-endpoints", endpoint, "-id", "one", "-ledger", "http://127.0.0.1:1")
	require.Equal(t, 1, r.end(t))
	require.Regexp(t, `level=ERROR msg=ends err=.*claim the ledger`, r.text.String())
	resp, err := client.Get(t.Context(), "", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Empty(t, resp.Kvs)
}

func TestJoin_refusesWhatItCannotDo(t *testing.T) {
	t.Parallel()
	endpoint, _ := startEtcd(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = taken.Close() })
	for name, row := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no id":         {[]string{"-join"}, 2, "-join needs an -id"},
		"arguments":     {[]string{"-join", "-id", "one", "more"}, 2, "takes no arguments"},
		"address taken": {[]string{"-join", "-id", "one", "-endpoints", endpoint, "-http", taken.Addr().String()}, 1, "address already in use"},
		"bad name":      {[]string{"-join", "-id", "one", "-endpoints", endpoint, "-name", "a//b"}, 1, "name"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, row.args...)
			require.Equal(t, row.code, r.end(t))
			require.Contains(t, r.text.String(), row.says)
		})
	}
}
