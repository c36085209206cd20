package security_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/lease"
)

// Authentication is turned on while a client without a user holds a lock: it loses the lock by its deadline, before
// the server gives it to somebody else, and everything says that authentication is what is missing.
func TestSession_authenticationIsTurnedOn(t *testing.T) {
	t.Parallel()
	const missing = "the server requires authentication, and the client gives no user and password"
	srv := etcdtest.Start(t, etcdtest.Options{Configure: cheap})
	client := srv.Client(t)
	s, other := newSession(t, client, lease.Options{TTL: shortTTL}), newSession(t, client, lease.Options{TTL: shortTTL})
	held := mustLock(t, s, "n")
	waiter := make(chan error, 1)
	go func() {
		_, err := other.Lock(bounded(t), "n")
		waiter <- err
	}()
	require.Eventually(t, func() bool { return len(srv.Keys(t, "n/")) == 2 }, patience, time.Millisecond)

	enableAuth(t, client)
	known := newSession(t, srv.Client(t, etcdtest.User("root", "root")), lease.Options{TTL: longTTL})
	next := mustLock(t, known, "n")
	require.Error(t, held.Context().Err(), "two holders at once")
	require.Greater(t, next.Token(), held.Token())

	cause := context.Cause(held.Context())
	lostFor(t, cause, lease.DeadlinePassed)
	require.ErrorContains(t, cause, missing)
	require.ErrorContains(t, <-waiter, missing) // refused, or lost like its session
	lostFor(t, held.Unlock(bounded(t)), lease.DeadlinePassed)

	_, err := s.Lock(bounded(t), "n")
	require.ErrorIs(t, err, rpctypes.ErrUserEmpty)
	require.ErrorContains(t, err, missing)
	_, err = lease.NewSession(bounded(t), client, lease.Options{})
	require.ErrorIs(t, err, rpctypes.ErrUserEmpty)
	require.ErrorContains(t, err, missing)
	require.NoError(t, context.Cause(next.Context()))
}

// A client that has user and password before they are needed holds its lock on when authentication is turned on.
func TestSession_isReadyForAuthentication(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{Configure: cheap})
	in, dial := counted(t)
	s := newSession(t, srv.Client(t, dial, etcdtest.User("root", "root")), lease.Options{TTL: longTTL})
	l := mustLock(t, s, "n")
	enableAuth(t, srv.Client(t))
	renewed := in.Answered(faults.LeaseKeepAlive)
	require.NoError(t, in.AwaitAnswered(bounded(t), faults.LeaseKeepAlive, renewed+2))
	require.NoError(t, context.Cause(l.Context()))
	require.NoError(t, l.Unlock(bounded(t)))
	require.NoError(t, mustLock(t, s, "n").Unlock(bounded(t)))
}

// jwt has the server sign tokens that last 2 s.
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

// Tokens that last 2 s, three times over: a lock that is held, one that is waited for and an election go on.
// (TestSession_outlivesItsAuthToken, of the module's own package, has a token that expires between two renewals.)
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
			s, other := newSession(t, client, opts), newSession(t, srv.app(t), opts)
			held := mustLock(t, s, "n")
			leads, err := election.Campaign(bounded(t), s, "role", election.Options{})
			require.NoError(t, err)
			waiter := make(chan *lease.Lock, 1)
			go func() {
				l, _ := other.Lock(bounded(t), "n")
				waiter <- l
			}()
			seen := make(chan election.Leader, 10)
			watching, stop := context.WithCancel(bounded(t))
			defer stop()
			go func() {
				for l, err := range election.Observe(watching, client, "jobs/role") {
					if err == nil {
						seen <- l
					}
				}
			}()
			require.Equal(t, leads.Token(), (<-seen).Token)

			stale, err := srv.root.Authenticate(bounded(t), "app", "first password")
			require.NoError(t, err)
			for range 3 {
				renewed := in.Answered(faults.LeaseKeepAlive)
				require.NoError(t, in.AwaitAnswered(bounded(t), faults.LeaseKeepAlive, renewed+1)) // about as long as a token lasts
				require.NoError(t, leads.Proclaim(bounded(t), "still there"))
			}
			_, err = srv.Client(t, withToken(stale.Token)).Get(bounded(t), "jobs/")
			require.ErrorIs(t, err, rpctypes.ErrInvalidAuthToken, "the token has not expired")
			require.NoError(t, context.Cause(held.Context()))
			require.NoError(t, context.Cause(leads.Context()))
			require.Empty(t, waiter)
			require.NoError(t, held.Unlock(bounded(t)))
			next := <-waiter
			require.NotNil(t, next)
			require.Greater(t, next.Token(), held.Token())
			require.NoError(t, leads.Resign(bounded(t)))
			for l := range seen { // the values, and then nobody
				if l == (election.Leader{}) {
					break
				}
			}
		})
	}
}

// The password is changed while a lock is held. The client is known by its token no more, and renewals fail: the loss
// says so, and the server is not stormed with the wrong password. When it is changed back the session heals.
func TestSession_passwordIsChanged(t *testing.T) {
	t.Parallel()
	const wrong = "authentication failed, invalid user ID or password"
	srv := startSecured(t)
	in, dial := counted(t)
	s := newSession(t, srv.app(t, dial), lease.Options{TTL: shortTTL, Prefix: "jobs/"})
	held := mustLock(t, s, "n")
	waiter := make(chan error, 1)
	rival := mustLock(t, newSession(t, srv.root, lease.Options{Prefix: "jobs/"}), "other")
	go func() {
		_, err := s.Lock(bounded(t), "other")
		waiter <- err
	}()
	require.NoError(t, in.AwaitAnswered(bounded(t), faults.Watch, 1))

	_, err := srv.root.UserChangePassword(bounded(t), "app", "second password")
	require.NoError(t, err)
	before := in.Sent(authenticate)
	cause := awaitEnd(t, held.Context())
	lostFor(t, cause, lease.DeadlinePassed)
	require.ErrorContains(t, cause, wrong)
	require.ErrorContains(t, <-waiter, wrong) // refused, or lost like its session
	// Renewals are due for two thirds of the TTL, less the margin, and are repeated after a second or a tenth of the TTL,
	// whichever is less.
	tried := in.Sent(authenticate) - before
	require.Positive(t, tried)
	require.Less(t, tried, 30)
	t.Logf("authenticated %d times in %v", tried, shortTTL)

	// Asked again, it says so again, at once. By itself it asks no more.
	_, err = s.Lock(bounded(t), "n")
	require.ErrorIs(t, err, rpctypes.ErrAuthFailed)
	require.ErrorContains(t, err, wrong)
	after := in.Sent(authenticate)
	_, err = srv.root.UserChangePassword(bounded(t), "app", "first password")
	require.NoError(t, err)
	require.Equal(t, after, in.Sent(authenticate))
	require.Greater(t, mustLock(t, s, "n").Token(), held.Token())
	require.NoError(t, rival.Unlock(bounded(t)))
}

// A permission that is taken away while a lock is held: if it comes back before the deadline nothing is lost.
func TestSession_permissionIsRevokedForAMoment(t *testing.T) {
	t.Parallel()
	srv := startSecured(t)
	s := newSession(t, srv.app(t), lease.Options{TTL: longTTL, Prefix: "jobs/"})
	held := mustLock(t, s, "n")
	srv.forbid(t)
	_, err := s.TryLock(bounded(t), "other")
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	require.ErrorContains(t, err, `"other"`)
	awaitState(t, s, lease.Jeopardy)
	require.ErrorIs(t, s.Status().Err, rpctypes.ErrPermissionDenied)
	srv.permit(t)
	awaitState(t, s, lease.Held)
	require.NoError(t, context.Cause(held.Context()))
	require.NoError(t, held.Unlock(bounded(t)))
	require.NoError(t, mustLock(t, s, "other").Unlock(bounded(t)))
}

// If it does not come back, the holder and those that wait are told what is missing, and when it comes back at last the
// session heals.
func TestSession_permissionIsRevoked(t *testing.T) {
	t.Parallel()
	const missing = "permission denied (to renew a lease takes permission to write every key of it)"
	srv := startSecured(t)
	opts := lease.Options{TTL: shortTTL, Prefix: "jobs/"}
	s := newSession(t, srv.app(t), opts)
	held := mustLock(t, s, "n")
	rival := newSession(t, srv.root, lease.Options{Prefix: "jobs/"})
	theirs := mustLock(t, rival, "other")
	waiter := make(chan error, 1)
	go func() {
		_, err := s.Lock(bounded(t), "other")
		waiter <- err
	}()
	require.Eventually(t, func() bool {
		resp, err := srv.root.Get(bounded(t), "jobs/other/", withPrefix)
		return err == nil && len(resp.Kvs) == 2
	}, patience, time.Millisecond)

	srv.forbid(t)
	next := mustLock(t, rival, "n")
	require.Error(t, held.Context().Err(), "two holders at once")
	require.Greater(t, next.Token(), held.Token())
	lostFor(t, context.Cause(held.Context()), lease.DeadlinePassed)
	require.ErrorContains(t, context.Cause(held.Context()), missing)
	err := <-waiter // refused, or lost like its session
	require.ErrorContains(t, err, `lock "other"`)
	require.ErrorContains(t, err, "permission denied")
	_, err = s.Lock(bounded(t), "other")
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	require.ErrorContains(t, err, `lock "other"`)

	srv.permit(t)
	require.NoError(t, next.Unlock(bounded(t)))
	require.NoError(t, theirs.Unlock(bounded(t)))
	require.Greater(t, mustLock(t, s, "n").Token(), next.Token())
	require.NoError(t, mustLock(t, s, "other").Unlock(bounded(t)))
}
