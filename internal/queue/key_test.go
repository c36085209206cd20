package queue_test

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/queue"
)

func TestCheckName(t *testing.T) {
	for name, want := range map[string]string{
		"a":                            "",
		"a/b":                          "",
		"a/b/c d/ä":                    "",
		"-":                            "",
		".":                            "",
		"a/..":                         "",
		strings.Repeat("a", 1024):      "",
		"":                             "is empty, want 1 to 1024 bytes",
		strings.Repeat("a", 1025):      "has 1025 bytes, want 1 to 1024",
		strings.Repeat("ä", 512) + "a": "has 1025 bytes, want 1 to 1024",
		"a\xff":                        `"a\xff" is not valid UTF-8`,
		"\x00":                         `"\x00" contains NUL`,
		"a\x00b":                       `"a\x00b" contains NUL`,
		"/":                            `"/" begins or ends with "/"`,
		"/a":                           `"/a" begins or ends with "/"`,
		"a/":                           `"a/" begins or ends with "/"`,
		"a//b":                         `"a//b" contains "//"`,
		"~":                            `"~" has a part that begins with "~"`,
		"a/~b":                         `"a/~b" has a part that begins with "~"`,
		"a~/b~":                        "",
	} {
		if err := queue.CheckName(name); want == "" {
			require.NoError(t, err, "%q", name)
		} else {
			require.EqualError(t, err, want)
		}
	}
}

// A session's prefix may begin with "/" and contain "//", and is as long as a name.
func TestCheckFullName(t *testing.T) {
	for name, want := range map[string]string{
		"a":                       "",
		"/a":                      "",
		"//a//b":                  "",
		strings.Repeat("a", 2304): "",
		"":                        "is empty, want 1 to 2304 bytes",
		strings.Repeat("a", 2305): "has 2305 bytes, want 1 to 2304",
		"a\x00b":                  `"a\x00b" contains NUL`,
		"/":                       `"/" ends with "/"`,
		"/~b":                     `"/~b" has a part that begins with "~"`,
	} {
		if err := queue.CheckFullName(name); want == "" {
			require.NoError(t, err, "%q", name)
		} else {
			require.EqualError(t, err, want)
		}
	}
}

// Whatever two different names are accepted, a contender of one is below its own prefix and is no contender of the
// other. Suffixes are those that sessions make, without "/".
func FuzzCheckName(f *testing.F) {
	for _, pair := range [][2]string{{"a", "a/b"}, {"a", "a/1"}, {"a/1", "a"}, {"a", "b"}, {"a", "a-"}, {"a//", "a"}, {"\x00", ""}, {"a", "a/1-x"}} {
		f.Add(pair[0], pair[1], int64(1))
	}
	f.Fuzz(func(t *testing.T, name, other string, lease int64) {
		if queue.CheckName(name) != nil || lease <= 0 {
			return
		}
		e := queue.NewEntry(name, clientv3.LeaseID(lease), "x")
		kv := &mvccpb.KeyValue{Key: []byte(e.Key), Lease: lease}
		require.True(t, strings.HasPrefix(e.Key, name+"/"))
		require.True(t, queue.Contends(name+"/", kv))
		if name == other || queue.CheckName(other) != nil {
			return
		}
		require.NotEqual(t, e.Key, queue.NewEntry(other, clientv3.LeaseID(lease), "x").Key)
		if strings.HasPrefix(e.Key, other+"/") { // otherwise no read of the other's queue finds it
			require.False(t, queue.Contends(other+"/", kv))
		}
	})
}

var form = regexp.MustCompile(`(?s)^[g-z]?(-?[1-9a-f][0-9a-f]*)(-.*)?$`)

// Whatever key anybody has put into etcd, it is a contender below one prefix at most, the one that its last "/" ends,
// and only on the lease in its name.
func FuzzContends(f *testing.F) {
	for _, s := range []struct {
		prefix, key string
		lease       int64
	}{
		{"a/", "a/1f", 0x1f}, // etcd's own
		{"a/", "a/1f-", 0x1f},
		{"a/", "a/1f-x", 0x1f},
		{"a/", "a/1f", 0},
		{"a/", "a/1f", 0x1e},
		{"a/", "a/1f", 0x1f1}, // it begins the same
		{"a/", "a/01f", 0x1f},
		{"a/", "a/1F", 0x1f},
		{"a/", "a/0", 0},
		{"a/", "a/7fffffffffffffff", math.MaxInt64},
		{"a/", "a/-1", -1},
		{"a/", "a/-1-x", -1},
		{"a/", "a/g1f", 0x1f}, // classes
		{"a/", "a/r1f-x", 0x1f},
		{"a/", "a/r1f-x", 0x1e},
		{"a/", "a/z-1-\xff", -1},
		{"a/", "a/rr1f", 0x1f},
		{"a/", "a/r", 0x1f},
		{"a/", "a/R1f", 0x1f},
		{"a/", "a/~1f", 0x1f},
		{"a/", "a/b/1f-x", 0x1f}, // nested
		{"a/b/", "a/b/1f-x", 0x1f},
		{"a/", "a/1f/1f", 0x1f},
		{"a/", "a/1f-x/1f", 0x1f},
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
		parts := form.FindStringSubmatch(child)
		named := parts != nil && parts[1] == strconv.FormatInt(lease, 16)
		require.Equal(t, named, queue.Contends(below, kv), "below its own prefix")
		if !strings.HasSuffix(prefix, "/") || prefix == below || !strings.HasPrefix(key, prefix) {
			return // not a queue's prefix, its own one, or one below which no read finds it
		}
		require.False(t, queue.Contends(prefix, kv))
	})
}
