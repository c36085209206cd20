package interop_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// A session whose client has a namespace puts all its keys into the namespace, also in commits that its locks share.
// Locks of two namespaces do not exclude each other.
func TestNamespace_hasAllKeys(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	inside := func(prefix string) *lease.Session {
		c := srv.Client(t)
		c.KV = namespace.NewKV(c.KV, prefix)
		c.Watcher = namespace.NewWatcher(c.Watcher, prefix)
		c.Lease = namespace.NewLease(c.Lease, prefix)
		return rig.NewSession(t, c, lease.Options{})
	}
	a, bare, ctx := inside("a/"), rig.NewSession(t, srv.Client(t), lease.Options{}), rig.Bounded(t)
	const each = 106 // keys of a session
	for i, s := range []*lease.Session{a, inside("b/"), bare} {
		_, err := s.Lock(ctx, "one")
		require.NoError(t, err)
		_, err = s.TryLockAll(ctx, "two", "three")
		require.NoError(t, err)
		_, err = s.RLock(ctx, "read")
		require.NoError(t, err)
		_, err = s.Permit(ctx, "permits", 2)
		require.NoError(t, err)
		leads, err := election.Campaign(ctx, s, "leader", election.Options{Value: "x"})
		require.NoError(t, err)
		require.NoError(t, leads.Proclaim(ctx, "y"))
		var many sync.WaitGroup
		for i := range 100 { // these locks share commits
			many.Go(func() {
				_, err := s.Lock(ctx, fmt.Sprintf("many%d", i))
				assert.NoError(t, err)
			})
		}
		many.Wait()
		require.Len(t, srv.Keys(t, [...]string{"a/", "b/", ""}[i]), [...]int{each, each, 3 * each}[i])
	}

	other, next := inside("a/"), make(chan error, 1)
	go func() {
		_, err := other.Lock(ctx, "one")
		next <- err
	}()
	rig.AwaitQueue(t, srv.Client(t), "a/one", 2)
	require.NoError(t, a.Close(ctx))
	require.NoError(t, rig.Await(t, next, "the next holder"))
	require.Len(t, srv.Keys(t, "a/"), 1)
	require.Len(t, srv.Keys(t, "b/"), each)
}
