package queue_test

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/leasefence/leasefence/internal/queue"
)

func TestContends(t *testing.T) {
	for name, tc := range map[string]struct {
		key      string
		lease    int64
		contends bool
		stray    bool
	}{
		"etcd's own":                   {"a/abc", 0xabc, true, true},
		"with a suffix":                {"a/abc-x", 0xabc, true, true},
		"with a long suffix":           {"a/abcdef", 0xabc, true, true},
		"another lease":                {"a/abc", 0xabd, false, true},
		"a lease that begins the same": {"a/abc", 0xabcd, false, true},
		"without a lease":              {"a/abc", 0, false, true},
		"without a lease, 0":           {"a/0", 0, false, true},
		"planted":                      {"a/config", 0xabc, false, true},
		"upper case":                   {"a/ABC", 0xabc, false, true},
		"nothing":                      {"a/", 0xabc, false, true},
		"nested name's contender":      {"a/b/abc", 0xabc, false, false},
		"nested below a contender":     {"a/abc/abc", 0xabc, false, false},
		"nested, no contender":         {"a/b/config", 0, false, false},
		"largest lease":                {"a/7fffffffffffffff", math.MaxInt64, true, true},
		"negative lease":               {"a/-7b", -0x7b, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			kv := &mvccpb.KeyValue{Key: []byte(tc.key), Lease: tc.lease}
			require.Equal(t, tc.contends, queue.Contends("a/", kv))
			require.Equal(t, tc.stray, queue.Stray("a/", kv))
		})
	}
}

// P9: what etcd's own mutex and election write contends.
func TestContends_whatEtcdWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		s, err := concurrency.NewSession(e.c.Client, concurrency.WithLease(e.lease))
		require.NoError(t, err)
		require.NoError(t, concurrency.NewMutex(s, "a").Lock(t.Context()))
		require.NoError(t, concurrency.NewElection(s, "b/c").Campaign(t.Context(), "x"))
		require.True(t, queue.Contends("a/", e.srv.Keys("a/")[0]))
		require.True(t, queue.Contends("b/c/", e.srv.Keys("b/c/")[0]))
		s.Orphan()
	})
}

func TestNewEntry_contends(t *testing.T) {
	for _, lease := range []clientv3.LeaseID{1, 0xabc, math.MaxInt64} {
		e := queue.NewEntry("a/b", lease, "suffix")
		require.Equal(t, queue.Entry{Prefix: "a/b/", Key: "a/b/" + strconv.FormatInt(int64(lease), 16) + "-suffix", Lease: lease}, e)
		kv := &mvccpb.KeyValue{Key: []byte(e.Key), Lease: int64(lease)}
		require.True(t, queue.Contends("a/b/", kv))
		require.False(t, queue.Contends("a/", kv))
	}
}

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
	} {
		if err := queue.CheckName(name); want == "" {
			require.NoError(t, err, "%q", name)
		} else {
			require.EqualError(t, err, want)
		}
	}
}

// P10: whatever two names are accepted, a contender of one is below its own prefix and is none of the other's, unless
// the names are one. Leases differ or are the same; suffixes are those that sessions make, without "/".
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
		if strings.HasPrefix(e.Key, other+"/") { // else no read of the other's queue finds it
			require.False(t, queue.Contends(other+"/", kv))
			require.False(t, queue.Stray(other+"/", kv))
		}
	})
}
