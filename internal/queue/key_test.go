package queue_test

import (
	"math"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/fakeetcd"
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

// script is a source of random numbers that reads them from data, two bytes each, and continues with rest after the
// end.
type script struct {
	data []byte
	rest *rand.PCG
}

func (s *script) Uint64() uint64 {
	if len(s.data) < 2 {
		s.data = nil
		return s.rest.Uint64()
	}
	v := uint64(s.data[0])<<8 | uint64(s.data[1])
	s.data = s.data[2:]
	return v * 0x0001_0001_0001_0001 // math/rand takes some numbers from the low bits, others from the high ones
}

// A waiter under a script of contenders that come and go, and of watches that break, hang, come late and are
// compacted: it is not granted while an older contender exists, and it is when none is left.
func FuzzQueue_Await(f *testing.F) {
	f.Add([]byte{})
	for seed := range uint64(400) { // scripts that take many of the steps
		r := rand.New(rand.NewPCG(seed, 7))
		data := make([]byte, 40+100*(seed%8))
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 2048 {
			return
		}
		bubble(t, func(t *testing.T, e *env) {
			s := &script{data: data, rest: rand.NewPCG(1, 2)}
			l := &line{t: t, e: e, other: e.another(t), s: s, r: rand.New(s)}
			for range 1 + l.r.IntN(6) {
				l.enter()
			}
			l.me = e.enter(t, "me")
			got := e.await(t.Context(), l.me)
			for len(s.data) > 0 {
				l.step()
				synctest.Wait()
				select {
				case o := <-got:
					l.requireRight(o)
					return
				default:
				}
			}
			e.c.Reset()
			for _, kv := range l.older() {
				require.True(t, e.srv.Delete(kv))
			}
			began := time.Now()
			l.requireRight(receive(t, got))
			require.LessOrEqual(t, time.Since(began), time.Minute, "requests that hang are given up")
		})
	})
}

// line is a queue with one waiter, me.
type line struct {
	t     *testing.T
	e     *env
	other *env // another process, without faults
	s     *script
	r     *rand.Rand
	me    place
	gone  bool // me's key was deleted
	n     int
}

// older returns the keys of the contenders before me.
func (l *line) older() []string {
	var keys []string
	for _, kv := range l.e.srv.Keys("a/") {
		if kv.CreateRevision < l.me.Rev && queue.Contends("a/", kv) {
			keys = append(keys, string(kv.Key))
		}
	}
	return keys
}

func (l *line) requireRight(o outcome[struct{}]) {
	l.t.Helper()
	if o.err != nil {
		require.ErrorIs(l.t, o.err, queue.ErrGone)
		require.True(l.t, l.gone, "its key exists")
		return
	}
	require.Empty(l.t, l.older(), "granted before its turn")
}

func (l *line) enter() {
	l.n++
	l.other.enter(l.t, string(rune('A'+l.n%26))+time.Duration(l.n).String())
}

func (l *line) step() {
	c, upTo := l.e.c, func(d time.Duration) time.Duration { return time.Duration(l.r.Int64N(int64(d))) }
	if l.r.IntN(3) > 0 { // otherwise two things happen at the same instant
		time.Sleep(upTo(300 * time.Millisecond))
	}
	switch l.r.IntN(16) {
	case 0:
		if older := l.older(); len(older) > 0 {
			l.e.srv.Delete(older[l.r.IntN(len(older))])
		}
	case 2: // deleted and put again, behind me
		if older := l.older(); len(older) > 0 {
			key := older[l.r.IntN(len(older))]
			l.e.srv.Delete(key)
			_, err := l.other.c.Put(l.t.Context(), key, "", clientv3.WithLease(l.other.lease))
			require.NoError(l.t, err)
		}
	case 3: // written, with its create revision unchanged
		if older := l.older(); len(older) > 0 {
			_, err := l.other.c.Put(l.t.Context(), older[l.r.IntN(len(older))], "x", clientv3.WithLease(l.other.lease))
			require.NoError(l.t, err)
		}
	case 4:
		l.enter()
	case 1, 5, 6:
		c.BreakWatches([]error{fakeetcd.ErrUnavailable, rpctypes.ErrGRPCNoLeader}[l.r.IntN(2)])
	case 7:
		l.e.Conn.Streams(l.e.Bound).Suspect()
	case 8, 9:
		require.NoError(l.t, l.e.srv.Compact(l.e.srv.Put("noise", "")))
	case 10:
		c.Inject(fakeetcd.WatchEvents, fakeetcd.Fault{Times: 1 + l.r.IntN(3), After: upTo(2 * time.Second)})
	case 11:
		c.Inject(fakeetcd.Watch, fakeetcd.Fault{Times: 1 + l.r.IntN(3), Before: upTo(time.Second), After: upTo(time.Second)})
	case 12:
		c.Inject(fakeetcd.Watch, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Request, Err: fakeetcd.ErrUnavailable})
	case 13:
		c.Inject(fakeetcd.Txn, fakeetcd.Fault{Times: 1, Lose: fakeetcd.Answer, Err: fakeetcd.ErrUnavailable, After: upTo(time.Second)})
	case 14:
		l.e.srv.Put("a/"+string(rune('a'+l.r.IntN(3)))+"/nested", "") // no contender
	case 15:
		if l.r.IntN(8) == 0 && !l.gone {
			l.gone = l.e.srv.Delete(l.me.Key)
		}
	}
}
