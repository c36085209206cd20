package etcd

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A probe tries each observer's prefix as often as another's: one whose permission is gone learns it as soon as any.
func TestLookout_probesAllPrefixesAlike(t *testing.T) {
	t.Parallel()
	l := &Lookout{Conn: &Conn{shared: new(shared)}, looks: map[*Look]struct{}{{Prefix: "a/"}: {}, {Prefix: "b/"}: {}, {Prefix: "c/"}: {}}}
	probed := map[string]int{}
	for range 30_000 {
		prefix, _ := l.furthest()
		probed[prefix]++
	}
	for _, prefix := range []string{"a/", "b/", "c/"} {
		require.InDelta(t, 10_000, probed[prefix], 1000, prefix)
	}
}
