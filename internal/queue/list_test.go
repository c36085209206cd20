package queue_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// Children reads at one revision, in the order of creation, and at most a page of a nested name.
func TestChildren(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		var want []string
		for i := range 40 {
			want = append(want, fmt.Sprintf("n/%02d", 99-i))
			e.srv.Put(want[i], "value")
		}
		for i := range 5000 {
			e.srv.Put(fmt.Sprintf("n/75/%d", i), "nested")
		}
		e.srv.Put("n/~own", "")
		rev := e.srv.Rev()
		e.c.Inject(fakeetcd.Get, fakeetcd.Fault{Times: 1, OnAnswer: func() { e.srv.Delete("n/99") }})
		keys, seen, err := queue.Children(e.once(t.Context()), "n/")
		require.NoError(t, err)
		require.Equal(t, rev, seen)
		var got []string
		for _, kv := range keys {
			require.Empty(t, kv.Value)
			got = append(got, string(kv.Key))
		}
		require.Equal(t, want, got)
		require.Len(t, e.c.Calls(fakeetcd.Get), 3)
	})
}

// A compaction between two pages is no failure if the caller has not asked for a revision.
func TestChildren_compacted(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		for i := range 40 {
			e.srv.Put(fmt.Sprintf("n/1%02d", i), "")
		}
		e.c.Inject(fakeetcd.Get, fakeetcd.Fault{Times: 1, OnAnswer: func() { e.srv.Delete("n/100"); _ = e.srv.Compact(e.srv.Rev()) }})
		keys, seen, err := queue.Children(e.once(t.Context()), "n/")
		require.NoError(t, err)
		require.Equal(t, e.srv.Rev(), seen)
		require.Len(t, keys, 39)
	})
}
