package integration_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/lease"
)

// TestClose_adoptedWithManyLocks closes a session that holds many locks on somebody else's lease: each key is deleted,
// the lease stays.
func TestClose_adoptedWithManyLocks(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	granted, err := client.Grant(bounded(t), 60)
	require.NoError(t, err)
	s, err := lease.Adopt(bounded(t), client, granted.ID, resolved(lease.Options{}))
	require.NoError(t, err)
	for n := range 300 {
		l := mustLock(t, s, fmt.Sprintf("n%d", n))
		if n == 0 {
			defer func() { lostFor(t, l.Unlock(bounded(t)), lease.SessionClosed) }()
		}
	}
	require.NoError(t, closed(t, goClose(bounded(t), s)))
	require.Empty(t, srv.Keys(t, ""))
	require.Contains(t, srv.Leases(t), granted.ID)
}
