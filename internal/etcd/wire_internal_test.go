package etcd

import (
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"
)

// wrapped is a KVClient that a client's owner has put around the client's.
type wrapped struct{ pb.KVClient }

// A line's messages bypass a client's KV only if that is the client's own.
func TestRawOf(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*clientv3.Client)
		raw    bool
	}{
		"its own":          {func(*clientv3.Client) {}, true},
		"made once more":   {func(c *clientv3.Client) { c.KV = clientv3.NewKV(c) }, true},
		"a namespace":      {func(c *clientv3.Client) { c.KV = namespace.NewKV(c.KV, "x/") }, false},
		"another KVClient": {func(c *clientv3.Client) { c.KV = clientv3.NewKVFromKVClient(wrapped{clientv3.RetryKVClient(c)}, c) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:1"}}) // nobody listens there
			require.NoError(t, err)
			defer client.Close() //nolint:errcheck // the test is over
			row.change(client)
			require.Equal(t, row.raw, rawOf(client) != nil)
		})
	}
	without := clientv3.NewCtxClient(t.Context())
	without.KV = clientv3.NewKVFromKVClient(wrapped{}, without)
	require.Nil(t, rawOf(without))
}
