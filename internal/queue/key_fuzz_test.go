package queue_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/queue"
)

// Whatever anybody has put into etcd: a key contends below one prefix at most, that of the name which its last "/"
// ends, and only on the lease that it is named after.
func FuzzContends(f *testing.F) {
	for _, s := range []struct {
		prefix, key string
		lease       int64
	}{
		{"a/", "a/1f-x", 0x1f},
		{"a/", "a/b/1f-x", 0x1f},
		{"a/b/", "a/b/1f-x", 0x1f},
		{"a/", "a/1f", 0},
		{"a/", "a/-1", -1},
		{"a/", "a/", 1},
		{"a/", "a/\xff\x00", 1},
		{"a", "a1f", 0x1f},
		{"", "1f", 0x1f},
		{"/", "//1f", 0x1f},
	} {
		f.Add(s.prefix, s.key, s.lease)
	}
	f.Fuzz(func(t *testing.T, prefix, key string, lease int64) {
		kv := &mvccpb.KeyValue{Key: []byte(key), Lease: lease}
		below, child := key[:strings.LastIndexByte(key, '/')+1], key[strings.LastIndexByte(key, '/')+1:]
		named := lease != 0 && strings.HasPrefix(child, strconv.FormatInt(lease, 16))
		require.Equal(t, named, queue.Contends(below, kv), "below its own prefix")
		require.True(t, queue.Stray(below, kv), "it would be a stray if it did not contend")
		if !strings.HasSuffix(prefix, "/") || prefix == below || !strings.HasPrefix(key, prefix) {
			return // no queue, its own, or one in which no read finds it
		}
		require.False(t, queue.Contends(prefix, kv))
		require.False(t, queue.Stray(prefix, kv))
	})
}

// A candidate's priority is read from its key as it was put there, and a key that is read as a candidate's has a
// priority that can be written back.
func FuzzCandidateMark(f *testing.F) {
	f.Add("a", int64(0x1f), 0, "n0", "a/1f-c5-x")
	f.Add("a/b", int64(1), 9999, "", "a/1f-c-1-x")
	f.Add("a-c3-", int64(1<<62), 42, "-c7-", "a/1f-c007-x")
	f.Add("c1-", int64(-1), -1, "c9-", "a/1f-c+7-x")
	f.Add("a", int64(1), 1, "x", "a/1f-c99999999999999999999-x")
	f.Add("a", int64(1), 1, "x", "a/b/1f-c5-x")
	f.Fuzz(func(t *testing.T, name string, lease int64, priority int, nonce, key string) {
		got, candidate := queue.PriorityOf("a/", []byte(key))
		if candidate {
			require.NotContains(t, strings.TrimPrefix(key, "a/"), "/", "a nested name's")
			require.Contains(t, key, "-c", "nobody has marked it")
			require.GreaterOrEqual(t, got, 0)
		}

		if queue.CheckName(name) != nil || lease <= 0 || priority < 0 || strings.Contains(nonce, "/") {
			return
		}
		e := queue.NewEntry(name, clientv3.LeaseID(lease), queue.CandidateMark(priority)+nonce)
		got, candidate = queue.PriorityOf(e.Prefix, []byte(e.Key))
		require.True(t, candidate)
		require.Equal(t, priority, got)
		_, candidate = queue.PriorityOf(e.Prefix, []byte(queue.NewEntry(name, clientv3.LeaseID(lease), "n"+nonce).Key))
		require.False(t, candidate, "a lock is taken for a candidate")
		require.True(t, queue.Contends(e.Prefix, &mvccpb.KeyValue{Key: []byte(e.Key), Lease: lease}))
	})
}
