package security_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
)

// authenticate is the method by which a client gets a token for its password.
const authenticate = etcdserverpb.Auth_Authenticate_FullMethodName

// cheap makes the server hash passwords at the lowest cost, since tests make it check many.
func cheap(cfg *embed.Config) { cfg.BcryptCost = 4 }

// secured is a server whose user "app" may read and write below "jobs/".
type secured struct {
	*etcdtest.Server
	root *clientv3.Client
}

func startSecured(t *testing.T, configure ...func(*embed.Config)) *secured {
	t.Helper()
	s := &secured{Server: etcdtest.Start(t, etcdtest.Options{Configure: func(cfg *embed.Config) {
		cheap(cfg)
		for _, f := range configure {
			f(cfg)
		}
	}})}
	s.root = s.Client(t)
	ctx := rig.Bounded(t)
	require.NoError(t, second(s.root.UserAdd(ctx, "app", "first password")))
	require.NoError(t, second(s.root.RoleAdd(ctx, "app")))
	require.NoError(t, second(s.root.UserGrantRole(ctx, "app", "app")))
	s.permit(t)
	enableAuth(t, s.root)
	s.root = s.Client(t, etcdtest.User("root", "root"))
	return s
}

// enableAuth turns authentication on, with root's password "root".
func enableAuth(t *testing.T, client *clientv3.Client) {
	t.Helper()
	ctx := rig.Bounded(t)
	require.NoError(t, second(client.UserAdd(ctx, "root", "root")))
	require.NoError(t, second(client.RoleAdd(ctx, "root")))
	require.NoError(t, second(client.UserGrantRole(ctx, "root", "root")))
	require.NoError(t, second(client.AuthEnable(ctx)))
}

// permit grants the user's permission, and forbid revokes it.
func (s *secured) permit(t *testing.T) {
	t.Helper()
	_, err := s.root.RoleGrantPermission(rig.Bounded(t), "app", "jobs/", clientv3.GetPrefixRangeEnd("jobs/"),
		clientv3.PermissionType(clientv3.PermReadWrite))
	require.NoError(t, err)
}

func (s *secured) forbid(t *testing.T) {
	t.Helper()
	_, err := s.root.RoleRevokePermission(rig.Bounded(t), "app", "jobs/", clientv3.GetPrefixRangeEnd("jobs/"))
	require.NoError(t, err)
}

// app returns a client of the user "app".
func (s *secured) app(t *testing.T, opts ...etcdtest.ClientOption) *clientv3.Client {
	t.Helper()
	return s.Client(t, append(opts, etcdtest.User("app", "first password"))...)
}

// counted returns an interceptor and the client option that installs it.
func counted(t *testing.T) (*faults.Interceptor, etcdtest.ClientOption) {
	t.Helper()
	in := faults.NewInterceptor(t)
	return in, etcdtest.Dial(in.DialOptions()...)
}

// withToken makes a client use another client's authentication token.
func withToken(token string) etcdtest.ClientOption {
	return func(cfg *clientv3.Config) { cfg.Token = token }
}
