package lease_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/lease"
)

// The error names the field, the value and the legal range, and nothing is sent.
func TestNewSession_refusesOptions(t *testing.T) {
	for name, tc := range map[string]struct {
		opts lease.Options
		want string
	}{
		"TTL negative":        {lease.Options{TTL: -1}, "Options.TTL is -1ns, want 1s to 2500000h0m0s (0: 30s)"},
		"TTL too long":        {lease.Options{TTL: 9_000_000_001 * time.Second}, "Options.TTL is 2500000h0m1s, want 1s to 2500000h0m0s"},
		"TTL a part too long": {lease.Options{TTL: 9_000_000_000*time.Second + 1}, "Options.TTL is 2500000h0m0.000000001s, want 1s to 2500000h0m0s"},
		"margin negative":     {lease.Options{Margin: -time.Second}, "Options.Margin is -1s, want 0 to a third of the TTL, 10s"},
		"margin too long":     {lease.Options{TTL: 9 * time.Second, Margin: 3*time.Second + 1}, "Options.Margin is 3.000000001s, want 0 to a third of the TTL, 3s"},
		"margin by default":   {lease.Options{Margin: 30 * time.Second}, "Options.Margin is 30s, want 0 to a third of the TTL, 10s"},
		"prefix too long":     {lease.Options{Prefix: strings.Repeat("a", 1025)}, "Options.Prefix has 1025 bytes, want 0 to 1024"},
		"prefix not UTF-8":    {lease.Options{Prefix: "a\xff"}, `Options.Prefix is "a\xff", want UTF-8 without NUL`},
		"prefix with NUL":     {lease.Options{Prefix: "a\x00b"}, `Options.Prefix is "a\x00b", want UTF-8 without NUL`},
		"prefix reserved":     {lease.Options{Prefix: "a/~b/"}, `Options.Prefix is "a/~b/", want no part that begins with "~"`},
		"era":                 {lease.Options{Era: 32768}, "Options.Era is 32768, want 0 to 32767"},
		"owner":               {lease.Options{Owner: strings.Repeat("a", 4097)}, "Options.Owner has 4097 bytes, want 0 to 4096"},
	} {
		inBubble(t, name, func(t *testing.T) {
			srv := newServer(t)
			require.ErrorContains(t, second(lease.NewSession(t.Context(), srv.Client(t.Context()), tc.opts)), "lease: "+tc.want)
			require.ErrorContains(t, second(lease.Adopt(t.Context(), srv.Client(t.Context()), 1, tc.opts)), "lease: "+tc.want)
			require.Empty(t, srv.Calls(fakeetcd.Any))
		})
	}
}

func TestNewSession_takesTheLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, lease.Options{
			TTL: 9_000_000_000 * time.Second, Margin: 1, Era: 32767,
			Prefix: strings.Repeat("p", 1023) + "/", Owner: strings.Repeat("o", 4096),
		})
		require.Equal(t, 9_000_000_000*time.Second, e.s.Status().TTL)
		require.Equal(t, e.began.Add(9_000_000_000*time.Second-1), e.s.Status().Deadline)
		l := e.lock(t, strings.Repeat("n", 1024))
		require.Equal(t, uint16(32767), l.Token().Era())
		require.Positive(t, l.Token())
		require.Len(t, e.srv.Keys("p")[0].Value, 4096)
	})
}

func TestNewSession_defaults(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		st := e.s.Status()
		require.Equal(t, lease.StateHeld, st.State)
		require.NoError(t, st.Err)
		require.Equal(t, ttl, st.TTL)
		require.Equal(t, e.began.Add(usable), st.Deadline)
		require.Equal(t, e.leaseIDs()[0], st.LeaseID)
		l := e.lock(t, "a")
		require.Zero(t, l.Token().Era())
		require.Equal(t, "a", e.keys("")[0][:strings.Index(l.Key(), "/")])
		host, err := os.Hostname()
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("%s/%d", host, os.Getpid()), string(e.srv.Keys("")[0].Value))
	})
}

func TestNewSession_withoutAClient(t *testing.T) {
	require.ErrorContains(t, second(lease.NewSession(t.Context(), nil, lease.Options{})), "lease: client is nil")
	_, err := lease.NewSession(t.Context(), &clientv3.Client{}, lease.Options{})
	require.EqualError(t, err, "lease: client.KV is nil, want a client of clientv3.New")
	require.ErrorContains(t, second(lease.Adopt(t.Context(), nil, 1, lease.Options{})), "lease: client is nil")
}

func TestAdopt_refuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		c := srv.NewClient(t.Context())
		require.EqualError(t, second(lease.Adopt(t.Context(), c.Client, 0, lease.Options{})), "lease: adopt: id is 0, want a lease's")
		require.Empty(t, srv.Calls(fakeetcd.Any))

		require.ErrorContains(t, second(lease.Adopt(t.Context(), c.Client, 0xabc, lease.Options{})), "lease: adopt lease abc: etcdserver: requested lease not found")

		short, err := c.Grant(t.Context(), 5)
		require.NoError(t, err)
		_, err = lease.Adopt(t.Context(), c.Client, short.ID, lease.Options{Margin: 2 * time.Second})
		require.ErrorContains(t, err, "Options.Margin is 2s, want 0 to a third of the adopted lease's TTL, 1.666666666s")
	})
}

// A namespace around only some parts of the client is refused before anything is sent. Around all of them it works.
func TestNewSession_namespace(t *testing.T) {
	const prefix = "ns/"
	kv := func(c *clientv3.Client) { c.KV = namespace.NewKV(c.KV, prefix) }
	watcher := func(c *clientv3.Client) { c.Watcher = namespace.NewWatcher(c.Watcher, prefix) }
	leases := func(c *clientv3.Client) { c.Lease = namespace.NewLease(c.Lease, prefix) }
	for name, tc := range map[string]struct {
		wrap []func(*clientv3.Client)
		want string
	}{
		"all":            {[]func(*clientv3.Client){kv, watcher, leases}, ""},
		"a bare lease":   {[]func(*clientv3.Client){kv, watcher}, "lease: client: [KV Watcher] has a namespace and [Lease] has none"},
		"a bare watcher": {[]func(*clientv3.Client){kv, leases}, "lease: client: [KV Lease] has a namespace and [Watcher] has none"},
		"a bare KV":      {[]func(*clientv3.Client){leases}, "lease: client: [Lease] has a namespace and [KV Watcher] has none"},
	} {
		inBubble(t, name, func(t *testing.T) {
			srv := newServer(t)
			c := srv.NewClient(t.Context())
			for _, wrap := range tc.wrap {
				wrap(c.Client)
			}
			s, err := lease.NewSession(t.Context(), c.Client, lease.Options{})
			if tc.want != "" {
				require.ErrorContains(t, err, tc.want)
				require.Empty(t, srv.Leases())
				_, err = lease.Adopt(t.Context(), c.Client, 1, lease.Options{})
				require.ErrorContains(t, err, tc.want)
				return
			}
			require.NoError(t, err)
			l, err := s.Lock(t.Context(), "a")
			require.NoError(t, err)
			require.Equal(t, prefix+l.Key(), string(srv.Keys("")[0].Key))
			require.NoError(t, s.Close(t.Context()))
		})
	}
}
