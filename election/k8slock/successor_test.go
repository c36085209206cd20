package k8slock_test

import (
	"encoding/json"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/election/k8slock"
)

// client-go releases without a look at whose record it is, and the releasing Lock's own lease may be alive still: that it
// has expired must not be what saves the successor's record.
func TestLock_releaseLeavesTheSuccessorAlone_whileItsLeaseLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		a, b := newCandidate(t, srv, k8slock.Options{Identity: "a"}), newCandidate(t, srv, k8slock.Options{Identity: "b"})
		a.create(t)
		successor, err := json.Marshal(b.leaderRecord())
		require.NoError(t, err)
		srv.Put(key, string(successor))
		require.Equal(t, b.Identity(), a.get(t).HolderIdentity)

		rev := srv.Rev()
		require.Error(t, a.Update(t.Context(), released()))
		require.Equal(t, rev, srv.Rev(), "nothing is written")
		require.NotEmpty(t, srv.Leases())
		a.requireNoTenure(t)
	})
}
