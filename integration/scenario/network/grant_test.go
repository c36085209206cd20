package network_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// The answer to the request for a lease is lost. The client repeats the request by itself, and the server refuses the
// ID, which the lost request has used. The session takes another one. Package fakeetcd has no connection, so it cannot
// show this.
func TestNewSession_lostGrant(t *testing.T) {
	t.Parallel()
	srv, in := etcdtest.Start(t, etcdtest.Options{}), faults.NewInterceptor(t)
	lost := in.Inject(t, faults.Rule{Fault: faults.LoseAnswer, Method: faults.LeaseGrant, Times: 1})
	s, err := lease.NewSession(rig.Bounded(t), srv.Client(t, etcdtest.Dial(in.DialOptions()...)), lease.Options{})
	require.NoError(t, err)
	require.Equal(t, 1, lost.Hits())
	require.Equal(t, 3, in.Sent(faults.LeaseGrant))
	require.NoError(t, rig.MustLock(t, s, "n").Unlock(rig.Bounded(t)))
	require.NoError(t, s.Close(rig.Bounded(t)))
	left, err := srv.Client(t).Leases(rig.Bounded(t))
	require.NoError(t, err)
	require.Len(t, left.Leases, 1, "the lost one, which expires by itself")
}
