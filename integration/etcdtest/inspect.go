package etcdtest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// The methods of this file call the server directly and not through a connection, so the faults that a test injects
// between client and server do not affect them. They may be called in cleanups, which run when the test's context has
// ended.

// KeyValues returns the live keys that begin with prefix, in the order of the keys. With an empty prefix it returns
// all.
func (s *Server) KeyValues(tb testing.TB, prefix string) []*mvccpb.KeyValue {
	tb.Helper()
	// A zero byte as the key and as the end of the range means every key.
	key, end := "\x00", "\x00"
	if prefix != "" {
		key, end = prefix, clientv3.GetPrefixRangeEnd(prefix)
	}
	req := &etcdserverpb.RangeRequest{Key: []byte(key), RangeEnd: []byte(end)}
	resp, err := s.Etcd.Server.Range(context.WithoutCancel(tb.Context()), req)
	require.NoError(tb, err)
	return resp.Kvs
}

// Keys returns the live keys that begin with prefix, sorted. With an empty prefix it returns all. It is never nil.
func (s *Server) Keys(tb testing.TB, prefix string) []string {
	tb.Helper()
	keys := []string{}
	for _, kv := range s.KeyValues(tb, prefix) {
		keys = append(keys, string(kv.Key))
	}
	return keys
}
