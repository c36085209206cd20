package election

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/queue"
)

func TestPriorityOf(t *testing.T) {
	for key, want := range map[string]int{
		"a/1f-p0-x": 0, "a/1f-p5-x": 5, "a/1f-p9999-x": 9999, "a/1f-p5-": 5, "a/1f-p5-x-y": 5,
		"a/1f": -1, "a/1f-": -1, "a/1f-x0": -1, "a/1f-p5": -1, "a/1f-5-x": -1, "a/1f-p-x": -1,
		"a/1f-px-x": -1, "a/1f-p5x-x": -1,
		"a/1f-p5-x/y": -1, "a/b/1f-p5-x": -1, "a/": -1,
	} {
		priority, candidate := priorityOf("a/", []byte(key))
		require.Equal(t, want >= 0, candidate, key)
		if candidate {
			require.Equal(t, want, priority, key)
		}
	}
}

// priorityOf reads the priority that mark has written. It takes no key of a nested name or without a mark for a
// candidate's.
func FuzzMark(f *testing.F) {
	f.Add("a", int64(0x1f), 0, "n0", "a/1f-p5-x")
	f.Add("a/b", int64(1), 9999, "", "a/1f-p-1-x")
	f.Add("a-p3-", int64(1<<62), 42, "-p7-", "a/1f-p007-x")
	f.Add("p1-", int64(-1), -1, "p9-", "a/1f-p+7-x")
	f.Add("a", int64(1), 1, "x", "a/1f-p99999999999999999999-x")
	f.Add("a", int64(1), 1, "x", "a/b/1f-p5-x")
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

// among finds the heir and the candidates that are passed. In the table a contender is "lock:value" or "etcd:value",
// where the value may be empty, or a candidate's "value:priority".
func TestChoice_among(t *testing.T) {
	value := func(v string) choice { return choice{value: v} }
	above := func(n int) choice { return choice{above: n} }
	for name, tc := range map[string]struct {
		queue  []string
		choice choice
		heir   int // its place, 1 for the first
		want   error
	}{
		"the next":                        {queue: []string{"b:0", "c:0"}, choice: value("b"), heir: 1},
		"past some":                       {queue: []string{"b:9", "c:0", "d:0", "e:0"}, choice: value("d"), heir: 3},
		"the first with the value":        {queue: []string{"b:0", "c:0", "d:0", "c:0"}, choice: value("c"), heir: 2},
		"before a lock":                   {queue: []string{"b:0", "c:0", "lock:"}, choice: value("c"), heir: 2},
		"behind a lock":                   {queue: []string{"b:0", "lock:", "c:0"}, choice: value("c"), want: ErrBlocked},
		"nobody":                          {queue: []string{"b:0"}, choice: value("c"), want: ErrNoCandidate},
		"nobody at all":                   {choice: value("c"), want: ErrNoCandidate},
		"a lock with the value":           {queue: []string{"lock:c"}, choice: value("c"), want: ErrNoCandidate},
		"one of etcd's own":               {queue: []string{"etcd:c"}, choice: value("c"), heir: 1},
		"behind one of etcd's own":        {queue: []string{"etcd:c", "b:1"}, choice: value("b"), want: ErrBlocked},
		"the highest":                     {queue: []string{"b:1", "c:5", "d:3"}, choice: above(0), heir: 2},
		"the first of the highest":        {queue: []string{"b:1", "c:5", "d:5"}, choice: above(0), heir: 2},
		"none higher":                     {queue: []string{"b:1", "c:5"}, choice: above(5), want: ErrNoCandidate},
		"the highest before a lock":       {queue: []string{"b:1", "lock:", "c:5"}, choice: above(0), heir: 1},
		"a higher one only behind a lock": {queue: []string{"b:0", "lock:", "c:5"}, choice: above(0), want: ErrBlocked},
		"etcd's own has no priority":      {queue: []string{"etcd:c"}, choice: above(0), want: ErrNoCandidate},
	} {
		t.Run(name, func(t *testing.T) {
			var kvs []*mvccpb.KeyValue
			for i, c := range tc.queue {
				kind, text, _ := strings.Cut(c, ":")
				kv := &mvccpb.KeyValue{Lease: int64(0x10 + i), CreateRevision: int64(100 + i), Value: []byte(text)}
				key := fmt.Sprintf("a/%x", kv.Lease)
				switch kind {
				case "lock":
					key += "-x"
				case "etcd":
				default:
					kv.Value = []byte(kind)
					key += "-p" + text + "-x"
				}
				kv.Key = []byte(key)
				kvs = append(kvs, kv)
			}
			h, err := tc.choice.among("a/", kvs)
			if tc.want != nil {
				require.ErrorIs(t, err, tc.want)
				return
			}
			require.NoError(t, err)
			require.Equal(t, int64(100+tc.heir-1), h.next.Rev)
			require.Len(t, h.between, tc.heir-1)
			for i, passed := range h.between {
				require.Equal(t, string(kvs[i].Key), passed.Key)
				require.Equal(t, kvs[i].CreateRevision, passed.Rev)
			}
		})
	}
}
