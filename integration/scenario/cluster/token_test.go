package cluster_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// The tokens of a name are the keys' create revisions. They only grow, across sessions and a restart of the server.
func TestToken_grows(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	one, other := rig.NewSession(t, srv.Client(t), lease.Options{}), rig.NewSession(t, srv.Client(t), lease.Options{})
	var last fence.Token
	take := func(s *lease.Session) *lease.Lock {
		l := rig.MustLock(t, s, "n")
		require.Greater(t, l.Token(), last)
		require.Equal(t, srv.KeyValues(t, l.Key())[0].CreateRevision, l.Token().Revision())
		last = l.Token()
		return l
	}
	turns := func() {
		for range 5 {
			require.NoError(t, take(one).Unlock(rig.Bounded(t)))
			require.NoError(t, take(other).Unlock(rig.Bounded(t)))
		}
	}
	turns()
	over := take(one)
	srv.Restart(t)
	require.NoError(t, over.Err())
	require.NoError(t, over.Unlock(rig.Bounded(t)))
	turns()

	// A higher era makes the token larger than all earlier ones, as is needed after a restore that took the revisions
	// back.
	raised := take(rig.NewSession(t, srv.Client(t), lease.Options{Era: 1}))
	require.Equal(t, fence.Token(1<<48|raised.Token().Revision()), raised.Token())
}
