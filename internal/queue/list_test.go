package queue_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/internal/etcd"
	"github.com/leasefence/leasefence/internal/fakeetcd"
	"github.com/leasefence/leasefence/internal/queue"
)

// Children reads at one revision, in the order of creation, and at most a page of a nested name.
func TestChildren(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := fakeetcd.New()
		t.Cleanup(srv.Close)
		c := srv.NewClient(t.Context())
		var want []string
		for i := range 40 {
			want = append(want, fmt.Sprintf("n/%02d", 99-i))
			srv.Put(want[i], "value")
		}
		for i := range 5000 {
			srv.Put(fmt.Sprintf("n/75/%d", i), "nested")
		}
		srv.Put("n/~own", "")
		rev := srv.Rev()
		c.Inject(fakeetcd.Get, fakeetcd.Fault{Times: 1, OnAnswer: func() { srv.Delete("n/99") }})
		keys, seen, err := queue.Children(etcd.Of(c.Client).Once(t.Context()), "n/")
		require.NoError(t, err)
		require.Equal(t, rev, seen)
		var got []string
		for _, kv := range keys {
			require.Empty(t, kv.Value)
			got = append(got, string(kv.Key))
		}
		require.Equal(t, want, got)
		require.Len(t, c.Calls(fakeetcd.Get), 3)
	})
}

// A compaction between two pages is no failure if the caller has not asked for a revision.
func TestChildren_compacted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := fakeetcd.New()
		t.Cleanup(srv.Close)
		c := srv.NewClient(t.Context())
		for i := range 40 {
			srv.Put(fmt.Sprintf("n/1%02d", i), "")
		}
		c.Inject(fakeetcd.Get, fakeetcd.Fault{Times: 1, OnAnswer: func() { srv.Delete("n/100"); _ = srv.Compact(srv.Rev()) }})
		keys, seen, err := queue.Children(etcd.Of(c.Client).Once(t.Context()), "n/")
		require.NoError(t, err)
		require.Equal(t, srv.Rev(), seen)
		require.Len(t, keys, 39)
	})
}
