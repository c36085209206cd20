package integration_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/leasefence/leasefence/election/k8slock"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
)

// A renewal does not authenticate again: by default each check of a password costs a server 50 to 100 ms of CPU time.
func TestLock_passwordIsNotCheckedForEachRenewal(t *testing.T) {
	srv := etcdtest.Start(t, etcdtest.Options{})
	root := srv.Client(t)
	_, err := root.UserAdd(t.Context(), "root", "root")
	require.NoError(t, err)
	_, err = root.RoleAdd(t.Context(), "root")
	require.NoError(t, err)
	_, err = root.UserGrantRole(t.Context(), "root", "root")
	require.NoError(t, err)
	_, err = root.AuthEnable(t.Context())
	require.NoError(t, err)

	in := faults.NewInterceptor(t)
	client := srv.Client(t, etcdtest.User("root", "root"), etcdtest.Dial(in.DialOptions()...))
	l, err := k8slock.New(client, name, k8slock.Options{Timeout: time.Minute})
	require.NoError(t, err)
	t.Cleanup(func() { l.RecordEvent("stopped leading") })
	c := &candidate{Lock: l}
	require.NoError(t, c.Create(t.Context(), c.record()))
	const renewals = 20
	for range renewals {
		require.NoError(t, c.Update(t.Context(), c.record()))
	}
	require.Equal(t, renewals, in.Answered(faults.LeaseKeepAlive))
	checked := in.Sent(etcdserverpb.Auth_Authenticate_FullMethodName)
	require.LessOrEqual(t, checked, 3, "one for the client, and one for each of its streams of renewals")
}
