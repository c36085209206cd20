package security_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// Authentication is turned on while a client without a user holds a lock. The holder loses the lock at its deadline,
// before the next one gets it, and all errors name the missing authentication. A client that had a user and password
// before keeps its lock.
func TestSession_authenticationIsTurnedOn(t *testing.T) {
	t.Parallel()
	const missing = "the server requires authentication, and the client gives no user and password"
	srv := etcdtest.Start(t, etcdtest.Options{Configure: cheap})
	client := srv.Client(t)
	s, other := rig.NewSession(t, client, lease.Options{TTL: shortTTL}), rig.NewSession(t, client, lease.Options{TTL: shortTTL})
	held := rig.MustLock(t, s, "n")
	waiter := make(chan error, 1)
	go func() {
		_, err := other.Lock(rig.Bounded(t), "n")
		waiter <- err
	}()
	rig.AwaitQueue(t, client, "n", 2)
	in, dial := counted(t)
	known := rig.NewSession(t, srv.Client(t, dial, etcdtest.User("root", "root")), lease.Options{TTL: longTTL})
	ready := rig.MustLock(t, known, "ready")

	enableAuth(t, client)
	renewed := in.Answered(faults.LeaseKeepAlive)
	next := rig.MustLock(t, known, "n")
	require.Error(t, held.Context().Err(), "two holders at once")
	require.Greater(t, next.Token(), held.Token())

	cause := context.Cause(held.Context())
	rig.RequireLost(t, cause, lease.ReasonDeadlinePassed)
	require.ErrorContains(t, cause, missing)
	require.ErrorContains(t, <-waiter, missing) // refused, or lost like its session
	rig.RequireLost(t, held.Unlock(rig.Bounded(t)), lease.ReasonDeadlinePassed)

	_, err := s.Lock(rig.Bounded(t), "n")
	require.ErrorIs(t, err, rpctypes.ErrUserEmpty)
	require.ErrorContains(t, err, missing)
	_, err = lease.NewSession(rig.Bounded(t), client, lease.Options{})
	require.ErrorIs(t, err, rpctypes.ErrUserEmpty)
	require.ErrorContains(t, err, missing)
	require.NoError(t, context.Cause(next.Context()))
	require.NoError(t, in.AwaitAnswered(rig.Bounded(t), faults.LeaseKeepAlive, renewed+2))
	require.NoError(t, context.Cause(ready.Context()))
	require.NoError(t, ready.Unlock(rig.Bounded(t)))
}

// jwt makes the server sign tokens that last 2 s.
func jwt(t *testing.T) func(*embed.Config) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	require.NoError(t, err)
	dir := t.TempDir()
	writePEM(t, filepath.Join(dir, "private"), "PRIVATE KEY", private)
	writePEM(t, filepath.Join(dir, "public"), "PUBLIC KEY", public)
	return func(cfg *embed.Config) {
		cfg.AuthToken = fmt.Sprintf("jwt,pub-key=%[1]s/public,priv-key=%[1]s/private,sign-method=RS256,ttl=2s", dir)
	}
}

// A held lock, a waiter, a leadership and an observer survive the expiry of several authentication tokens, which last 2
// s.
func TestSession_outlivesManyAuthTokens(t *testing.T) {
	t.Parallel()
	for name, configure := range map[string]func(*embed.Config){
		"simple": func(cfg *embed.Config) { cfg.AuthTokenTTL = 2 },
		"JWT":    jwt(t),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := startSecured(t, configure)
			in, dial := counted(t)
			client := srv.app(t, dial)
			opts := lease.Options{TTL: longTTL, Prefix: "jobs/"}
			s, other := rig.NewSession(t, client, opts), rig.NewSession(t, srv.app(t), opts)
			held := rig.MustLock(t, s, "n")
			leads, err := election.Campaign(rig.Bounded(t), s, "role", election.Options{})
			require.NoError(t, err)
			waiter := rig.Ways[0].Wait(t, other, "n")
			seen := make(chan election.Leader, 10)
			watching, stop := context.WithCancel(rig.Bounded(t))
			defer stop()
			go func() {
				for l, err := range election.Observe(watching, client, "jobs/role") {
					if err == nil {
						seen <- l
					}
				}
			}()
			require.EqualValues(t, leads.Token(), (<-seen).Revision)

			stale, err := srv.root.Authenticate(rig.Bounded(t), "app", "first password")
			require.NoError(t, err)
			for range 3 {
				renewed := in.Answered(faults.LeaseKeepAlive)
				// A third of the TTL: as long as a token lasts.
				require.NoError(t, in.AwaitAnswered(rig.Bounded(t), faults.LeaseKeepAlive, renewed+1))
				require.NoError(t, leads.Proclaim(rig.Bounded(t), "still there"))
			}
			_, err = srv.Client(t, withToken(stale.Token)).Get(rig.Bounded(t), "jobs/")
			require.ErrorIs(t, err, rpctypes.ErrInvalidAuthToken, "the token has not expired")
			require.NoError(t, context.Cause(held.Context()))
			require.NoError(t, context.Cause(leads.Context()))
			require.Empty(t, waiter)
			require.NoError(t, held.Unlock(rig.Bounded(t)))
			next := rig.Await(t, waiter, "the waiter was not served")
			require.Greater(t, next.Token(), held.Token())
			require.NoError(t, leads.Resign(rig.Bounded(t)))
			for l := range seen { // the proclaimed values, and then no leader
				if l == (election.Leader{}) {
					break
				}
			}
		})
	}
}

// The password is changed while a lock is held. The server forgets the client's token, and renewals fail. The loss
// names the reason, and the client does not flood the server with the wrong password. When the password is changed
// back, the session heals.
func TestSession_passwordIsChanged(t *testing.T) {
	t.Parallel()
	const wrong = "authentication failed, invalid user ID or password"
	srv := startSecured(t)
	in, dial := counted(t)
	s := rig.NewSession(t, srv.app(t, dial), lease.Options{TTL: shortTTL, Prefix: "jobs/"})
	held := rig.MustLock(t, s, "n")
	waiter := make(chan error, 1)
	rival := rig.MustLock(t, rig.NewSession(t, srv.root, lease.Options{Prefix: "jobs/"}), "other")
	go func() {
		_, err := s.Lock(rig.Bounded(t), "other")
		waiter <- err
	}()
	require.NoError(t, in.AwaitAnswered(rig.Bounded(t), faults.Watch, 1))

	_, err := srv.root.UserChangePassword(rig.Bounded(t), "app", "second password")
	require.NoError(t, err)
	before := in.Sent(authenticate)
	cause := rig.AwaitEnd(t, held.Context())
	rig.RequireLost(t, cause, lease.ReasonDeadlinePassed)
	require.ErrorContains(t, cause, wrong)
	require.ErrorContains(t, <-waiter, wrong) // refused, or lost like its session
	// Until the deadline, for about 2.5 s, five loops retry. Renewals are retried after a tenth of the TTL, at most a
	// second. The watch and the read of each key are retried after 25 ms, then with a doubling backoff whose jitter takes
	// off up to a half.
	tried := in.Sent(authenticate) - before
	require.Positive(t, tried)
	require.LessOrEqual(t, tried, 5*8)
	t.Logf("authenticated %d times in %v", tried, shortTTL)

	// A further call fails again at once. Between calls the session sends nothing.
	_, err = s.Lock(rig.Bounded(t), "n")
	require.ErrorIs(t, err, rpctypes.ErrAuthFailed)
	require.ErrorContains(t, err, wrong)
	after := in.Sent(authenticate)
	_, err = srv.root.UserChangePassword(rig.Bounded(t), "app", "first password")
	require.NoError(t, err)
	require.Equal(t, after, in.Sent(authenticate))
	require.Greater(t, rig.MustLock(t, s, "n").Token(), held.Token())
	require.NoError(t, rival.Unlock(rig.Bounded(t)))
}

// The server keeps serving a watch that it has allowed once, so an observer only learns after a while that its
// permission to read is gone. An observer of another name is not affected.
func TestObserve_permissionIsRevoked(t *testing.T) {
	t.Parallel()
	srv := startSecured(t)
	client := srv.app(t)
	leads := func(name string) election.Leader {
		s := rig.NewSession(t, srv.root, lease.Options{})
		l, err := election.Campaign(rig.Bounded(t), s, name, election.Options{Value: "value"})
		require.NoError(t, err)
		return election.Leader{Value: "value", Revision: l.Token().Revision(), Key: l.Key(), Lease: s.Status().LeaseID}
	}
	leader := leads("jobs/n")
	require.NoError(t, second(srv.root.RoleGrantPermission(rig.Bounded(t), "app", "m/", clientv3.GetPrefixRangeEnd("m/"),
		clientv3.PermissionType(clientv3.PermReadWrite))))
	err := rig.Observe(t, client, "other").AwaitEnd(t)
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	require.ErrorContains(t, err, `election: observe "other": `)
	n, m := rig.Observe(t, client, "jobs/n"), rig.Observe(t, client, "m")
	n.Sees(t, leader)
	m.Sees(t, election.Leader{})
	srv.forbid(t)
	require.ErrorIs(t, n.AwaitEnd(t), rpctypes.ErrPermissionDenied)
	m.Sees(t, leads("m"))
}

// A permission is revoked while a lock is held. The errors of the holder and the waiter name the missing permission,
// and when it is granted again, the session heals.
func TestSession_permissionIsRevoked(t *testing.T) {
	t.Parallel()
	const missing = "permission denied (renewing a lease requires permission to write every key attached to it)"
	srv := startSecured(t)
	opts := lease.Options{TTL: shortTTL, Prefix: "jobs/"}
	s := rig.NewSession(t, srv.app(t), opts)
	held := rig.MustLock(t, s, "n")
	rival := rig.NewSession(t, srv.root, lease.Options{Prefix: "jobs/"})
	theirs := rig.MustLock(t, rival, "other")
	waiter := make(chan error, 1)
	go func() {
		_, err := s.Lock(rig.Bounded(t), "other")
		waiter <- err
	}()
	rig.AwaitQueue(t, srv.root, "jobs/other", 2)

	srv.forbid(t)
	next := rig.MustLock(t, rival, "n")
	require.Error(t, held.Context().Err(), "two holders at once")
	require.Greater(t, next.Token(), held.Token())
	rig.RequireLost(t, context.Cause(held.Context()), lease.ReasonDeadlinePassed)
	require.ErrorContains(t, context.Cause(held.Context()), missing)
	err := <-waiter // refused, or lost like its session
	require.ErrorContains(t, err, `lock "other"`)
	require.ErrorContains(t, err, "permission denied")
	_, err = s.Lock(rig.Bounded(t), "other")
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	require.ErrorContains(t, err, `lock "other"`)

	srv.permit(t)
	require.NoError(t, next.Unlock(rig.Bounded(t)))
	require.NoError(t, theirs.Unlock(rig.Bounded(t)))
	require.Greater(t, rig.MustLock(t, s, "n").Token(), next.Token())
	require.NoError(t, rig.MustLock(t, s, "other").Unlock(rig.Bounded(t)))
}
