package queue_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/leasefence/leasefence/internal/queue"
)

var form = regexp.MustCompile(`(?s)^[g-z]?(-?[1-9a-f][0-9a-f]*)(-.*)?$`)

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
		{"a/", "a/r1f-x", 0x1f},
		{"a/", "a/z-1-\xff", -1},
		{"a", "a1f", 0x1f},
		{"", "1f", 0x1f},
		{"/", "//1f", 0x1f},
	} {
		f.Add(s.prefix, s.key, s.lease)
	}
	f.Fuzz(func(t *testing.T, prefix, key string, lease int64) {
		kv := &mvccpb.KeyValue{Key: []byte(key), Lease: lease}
		below, child := key[:strings.LastIndexByte(key, '/')+1], key[strings.LastIndexByte(key, '/')+1:]
		parts := form.FindStringSubmatch(child)
		named := parts != nil && parts[1] == strconv.FormatInt(lease, 16)
		require.Equal(t, named, queue.Contends(below, kv), "below its own prefix")
		if !strings.HasSuffix(prefix, "/") || prefix == below || !strings.HasPrefix(key, prefix) {
			return // no queue, its own, or one in which no read finds it
		}
		require.False(t, queue.Contends(prefix, kv))
	})
}
