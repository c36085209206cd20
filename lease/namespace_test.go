package lease_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/leasefence/leasefence/lease"
)

// A namespace around some parts of the client only is refused before anything is sent. Around all of them it serves.
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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
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
		})
	}
}
