//go:build unix

package main

import (
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/examples/internal/ledger"
	"github.com/leasefence/leasefence/fence"

	"github.com/leasefence/leasefence/examples/internal/exampletest"
)

// Two processes as deployed: without the demo and without a ledger.
func TestJoin_leadsAndHandsOver(t *testing.T) {
	t.Parallel()
	endpoint, client := exampletest.StartEtcd(t)
	join := func(id string) (*exampletest.Running, string) {
		r := exampletest.Start(t, "-join", "-endpoints", endpoint, "-name", "team/leader", "-id", id, "-http", "127.0.0.1:0", "-ttl", "5s")
		return r, "http://" + r.Await(t, `msg=campaigns id=`+id+` http=(\S+)`)[0]
	}
	one, urlOne := join("one")
	token := one.Await(t, `level=INFO msg=leads token=(\d+)`)[0]
	resp, err := client.Get(t.Context(), "team/leader/", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Len(t, resp.Kvs, 1)
	require.Equal(t, "one", string(resp.Kvs[0].Value))
	require.EqualValues(t, exampletest.Number(t, token), resp.Kvs[0].CreateRevision)

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

	// On SIGTERM the leader resigns, so the next process need not wait for the lease of five seconds.
	one.Signal(t, syscall.SIGTERM)
	next := two.Await(t, `level=INFO msg=leads token=(\d+)`)[0]
	require.Greater(t, exampletest.Number(t, next), exampletest.Number(t, token))
	require.Zero(t, one.End(t))
	awaitLeader(t, urlTwo, `{"leader":"two","token":"`+next+`","me":true}`)
	two.Signal(t, syscall.SIGINT)
	require.Zero(t, two.End(t))

	exampletest.RequireNothingLeft(t, client)
}

// A process whose work fails resigns and ends.
func TestJoin_endsWhenItsWorkFails(t *testing.T) {
	t.Parallel()
	endpoint, client := exampletest.StartEtcd(t)
	r := exampletest.Start(t, "-join", "-endpoints", endpoint, "-id", "one", "-ledger", "http://127.0.0.1:1")
	require.Equal(t, 1, r.End(t))
	require.Regexp(t, `level=ERROR msg=ends err=.*claim the ledger`, r.Text.String())
	resp, err := client.Get(t.Context(), "", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Empty(t, resp.Kvs)
}

// A process ends and says so if the ledger has seen tokens that etcd has not granted yet. A higher era mends that.
func TestJoin_saysThatEtcdWasRestored(t *testing.T) {
	t.Parallel()
	endpoint, _ := exampletest.StartEtcd(t)
	book, err := ledger.Open(t.Context(), true, func(ledger.Attempt) {}, func(ledger.Attempt) {})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, book.Close()) })
	handler, err := book.Handler()
	require.NoError(t, err)
	url, stop, err := ledger.Serve(handler)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, stop()) })
	require.NoError(t, book.Claim(fence.NewContext(t.Context(), 1_000_000)))

	join := func(more ...string) *exampletest.Running {
		return exampletest.Start(t, append([]string{"-join", "-endpoints", endpoint, "-id", "one", "-ledger", url}, more...)...)
	}
	fresh := join()
	require.Equal(t, 1, fresh.End(t))
	require.Regexp(t, `level=ERROR msg=ends err=.*raise Options.Era`, fresh.Text.String())
	require.Equal(t, 1, strings.Count(fresh.Text.String(), "msg=leads"), "the process led again")

	raised := join("-era", "1")
	address := raised.Await(t, `msg=campaigns id=one http=(\S+)`)[0]
	token := raised.Await(t, `msg=leads token=(\d+)`)[0]
	require.Greater(t, exampletest.Number(t, token), 1<<48)
	awaitLeader(t, "http://"+address, `{"leader":"one","token":"`+token+`","me":true}`)
	awaitEntry(t, book)
	raised.Signal(t, syscall.SIGTERM)
	require.Zero(t, raised.End(t))
}

func awaitEntry(t *testing.T, book *ledger.Ledger) {
	t.Helper()
	require.Eventually(t, func() bool {
		last, err := book.Last(t.Context())
		return err == nil && last.Seq > 0
	}, exampletest.Patience, 10*time.Millisecond)
}

func TestJoin_refusesWhatItCannotDo(t *testing.T) {
	t.Parallel()
	endpoint, _ := exampletest.StartEtcd(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = taken.Close() })
	for name, row := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no id":         {[]string{"-join"}, 2, "-join needs an -id"},
		"no password":   {[]string{"-join", "-id", "one", "-user", "root"}, 2, "-user and -password-file"},
		"era too high":  {[]string{"-join", "-id", "one", "-era", "32768"}, 2, "-era is 32768, want 0 to 32767"},
		"arguments":     {[]string{"-join", "-id", "one", "more"}, 2, "takes no arguments"},
		"address taken": {[]string{"-join", "-id", "one", "-endpoints", endpoint, "-http", taken.Addr().String()}, 1, "address already in use"},
		"bad name":      {[]string{"-join", "-id", "one", "-endpoints", endpoint, "-name", "a//b"}, 1, "name"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := exampletest.Start(t, row.args...)
			require.Equal(t, row.code, r.End(t))
			require.Contains(t, r.Text.String(), row.says)
		})
	}
}
