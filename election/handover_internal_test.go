package election

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/queue"
)

// priorityOf reads the priority that mark has written. It takes no key of a nested name or without a mark for a
// candidate's.
func FuzzMark(f *testing.F) {
	f.Add("a", int64(0x1f), 0, "n0", "a/1f-p5-x")
	f.Add("a/b", int64(1), 9999, "", "a/1f-p-1-x")
	f.Add("a-p3-", int64(1<<62), 42, "-p7-", "a/1f-p007-x")
	f.Add("p1-", int64(-1), -1, "p9-", "a/1f-p+7-x")
	f.Add("a", int64(1), 1, "x", "a/1f-p99999999999999999999-x")
	f.Add("a", int64(1), 1, "x", "a/b/1f-p5-x")
	f.Add("a", int64(1), 1, "x", "a/1f-x5-x")
	f.Fuzz(func(t *testing.T, name string, lease int64, priority int, nonce, key string) {
		got, candidate := priorityOf("a/", []byte(key))
		if candidate {
			require.NotContains(t, strings.TrimPrefix(key, "a/"), "/", "the key of a nested name")
			require.Contains(t, key, "-p", "the key has no mark")
			require.GreaterOrEqual(t, got, 0)
		}

		if queue.CheckName(name) != nil || lease <= 0 || priority < 0 || strings.Contains(nonce, "/") {
			return
		}
		e := queue.NewEntry(name, clientv3.LeaseID(lease), mark(priority)+nonce)
		got, candidate = priorityOf(e.Prefix, []byte(e.Key))
		require.True(t, candidate)
		require.Equal(t, priority, got)
		_, candidate = priorityOf(e.Prefix, []byte(queue.NewEntry(name, clientv3.LeaseID(lease), "n"+nonce).Key))
		require.False(t, candidate, "a lock is no candidate")
		require.True(t, queue.Contends(e.Prefix, &mvccpb.KeyValue{Key: []byte(e.Key), Lease: lease}))
	})
}
