package security_test

import (
	"context"
	"crypto/tls"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/connectivity"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/pki"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// While a session holds a lock and waits for another, the operator takes its access away. The holder loses the lock at
// its deadline, before the next one gets it. All errors name the reason, and the client does not flood the server with
// a wrong password. When it has access again, the session heals.
func TestSession_losesItsAccess(t *testing.T) {
	t.Parallel()
	const (
		missing = "the server requires authentication, and the client gives no user and password"
		wrong   = "authentication failed, invalid user ID or password"
		denied  = "permission denied"
	)
	change := func(to string) func(*testing.T, *server) {
		return func(t *testing.T, srv *server) { //nolint:thelper // a row
			require.NoError(t, second(srv.root.UserChangePassword(rig.Bounded(t), "worker", secret("a password", to))))
		}
	}
	for name, row := range map[string]struct {
		open           bool // the server demands no authentication at first, and the client has no user
		take, giveBack func(*testing.T, *server)
		lost, refused  string
		err            error
	}{
		"authentication is turned on": {
			open:     true,
			take:     func(t *testing.T, srv *server) { require.NoError(t, second(srv.root.AuthEnable(rig.Bounded(t)))) },  //nolint:thelper // a row
			giveBack: func(t *testing.T, srv *server) { require.NoError(t, second(srv.root.AuthDisable(rig.Bounded(t)))) }, //nolint:thelper // a row
			lost:     missing, refused: missing, err: rpctypes.ErrUserEmpty,
		},
		// The server forgets the client's token.
		"password is changed": {
			take: change("second password"), giveBack: change(password("worker")),
			lost: wrong, refused: wrong, err: rpctypes.ErrAuthFailed,
		},
		"permission is revoked": {
			take:     func(t *testing.T, srv *server) { srv.forbid(t) },          //nolint:thelper // a row
			giveBack: func(t *testing.T, srv *server) { srv.permit(t, "jobs/") }, //nolint:thelper // a row
			lost:     denied + " (renewing a lease requires permission to write every key attached to it)", refused: denied,
			err: rpctypes.ErrPermissionDenied,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := faults.NewInterceptor(t)
			srv := start(t)
			client := srv.as(t, "worker", etcdtest.Dial(in.DialOptions()...))
			if row.open {
				require.NoError(t, second(srv.root.AuthDisable(rig.Bounded(t))))
				client = srv.Client(t, logged, etcdtest.Dial(in.DialOptions()...))
			}
			s := newSession(t, client, lease.Options{TTL: shortTTL})
			held := rig.MustLock(t, s, "n")
			rival := newSession(t, srv.root, lease.Options{}) // has a user and a password, from the start
			theirs := rig.MustLock(t, rival, "other")
			waiter := make(chan error, 1)
			go func() { waiter <- second(s.Lock(rig.Bounded(t), "other")) }()
			rig.AwaitQueue(t, srv.root, "jobs/other", 2)

			const authenticate = etcdserverpb.Auth_Authenticate_FullMethodName
			before := in.Sent(authenticate)
			row.take(t, srv)
			next := rig.MustLock(t, rival, "n")
			require.Error(t, held.Err(), "two holders at once")
			require.Greater(t, next.Token(), held.Token())
			cause := context.Cause(held.Context())
			rig.RequireLost(t, cause, lease.ReasonDeadlinePassed)
			require.ErrorContains(t, cause, row.lost)
			err := <-waiter // refused, or lost like its session
			require.ErrorContains(t, err, `lock "other"`)
			require.ErrorContains(t, err, row.refused)
			// Until the deadline the renewals and the watch of each key are retried, with pauses that grow to a second. Without
			// these there would be hundreds.
			tried := in.Sent(authenticate) - before
			require.LessOrEqual(t, tried, 5*8)
			if errors.Is(row.err, rpctypes.ErrAuthFailed) {
				require.Positive(t, tried)
			}

			// A further call fails again at once. Between calls the session only tries to delete the waiter's key, until the lease
			// has surely expired: at once, after a third of the TTL, and then after twice the pause before.
			err = second(s.Lock(rig.Bounded(t), "n"))
			require.ErrorIs(t, err, row.err)
			require.ErrorContains(t, err, row.refused)
			after := in.Sent(authenticate)
			rig.AwaitRenewal(t, rival)
			require.LessOrEqual(t, in.Sent(authenticate)-after, 3)
			row.giveBack(t, srv)
			require.NoError(t, next.Unlock(rig.Bounded(t)))
			require.NoError(t, theirs.Unlock(rig.Bounded(t)))
			require.Greater(t, rig.MustLock(t, s, "n").Token(), next.Token())
			rig.MustLock(t, s, "other")
		})
	}
}

// The server keeps serving a watch that it has allowed once, so an observer only learns after a while that its
// permission to read is gone. An observer of another name is not affected.
func TestObserve_permissionIsRevoked(t *testing.T) {
	t.Parallel()
	srv := start(t)
	client := srv.as(t, "worker")
	s := newSession(t, srv.root, lease.Options{})
	l, err := election.Campaign(rig.Bounded(t), s, "n", election.Options{Value: secret("a value", "here I lead")})
	require.NoError(t, err)
	srv.permit(t, "m/")
	err = rig.Observe(t, client, "other").AwaitEnd(t)
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	require.ErrorContains(t, err, `election: observe "other": `)
	n, m := rig.Observe(t, client, "jobs/n"), rig.Observe(t, client, "m")
	n.Sees(t, election.Leader{Value: "here I lead", Revision: l.Token().Revision(), Key: l.Key(), Lease: s.Status().LeaseID})
	m.Sees(t, election.Leader{})
	srv.forbid(t)
	require.ErrorIs(t, n.AwaitEnd(t), rpctypes.ErrPermissionDenied)
	require.NoError(t, second(srv.root.Put(rig.Bounded(t), "m/none", ""))) // no candidate
	m.SeesNoMore(t)
}

// refused is the error if the server's TLS alert is lost, as may happen with TLS 1.3.
const refused = "as it does if it refuses the client's TLS certificate"

// serve runs a server that demands client certificates of the authority. It reads its own from files, again for each
// connection.
func serve(t *testing.T, a *pki.Authority, cert tls.Certificate) (*etcdtest.Server, pki.Files) {
	t.Helper()
	f := pki.NewFiles(t, a, cert)
	return etcdtest.Start(t, etcdtest.Options{CertFile: f.Cert, KeyFile: f.Key, ClientCAFile: f.Authority}), f
}

// identity is a client's certificate, which may be replaced. An empty one stands for a client without a certificate.
type identity struct {
	atomic.Pointer[tls.Certificate]
}

// config returns a client's TLS configuration that trusts the authority.
func (i *identity) config(a *pki.Authority) *tls.Config {
	return &tls.Config{
		RootCAs:              a.Pool(),
		MinVersion:           tls.VersionTLS12,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return i.Load(), nil },
	}
}

func holding(cert tls.Certificate) *identity {
	i := new(identity)
	i.Store(&cert)
	return i
}

// awaitFailure waits until a client has failed to connect.
func awaitFailure(t *testing.T, client *clientv3.Client) {
	t.Helper()
	ctx, conn := rig.Bounded(t), client.ActiveConnection()
	conn.Connect()
	for state := conn.GetState(); state != connectivity.TransientFailure; state = conn.GetState() {
		require.True(t, conn.WaitForStateChange(ctx, state), "the client does not fail to connect; it is %v", state)
	}
}

// saysWhy checks that a call that waits for a connection names the reason when its context ends, and so does one whose
// context has ended before.
func saysWhy(t *testing.T, want []string, call func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	for range 2 {
		err := call(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		named := slices.ContainsFunc(want, func(text string) bool { return strings.Contains(err.Error(), text) })
		require.True(t, named, "the error does not name the reason: %v, want one of %q", err, want)
	}
}

func opens(client *clientv3.Client) func(context.Context) error {
	return func(ctx context.Context) error { return second(lease.NewSession(ctx, client, lease.Options{})) }
}

// If a certificate is invalid, the errors of calls name the reason, on a new session and on one that holds a lock.
func TestSession_saysWhatIsWrongWithACertificate(t *testing.T) {
	t.Parallel()
	ca, other := pki.NewAuthority(t, "ours"), pki.NewAuthority(t, "another")
	for name, row := range map[string]struct {
		server, client tls.Certificate
		want           string
	}{
		"server's expired":              {ca.Issue(t, pki.Expired), ca.Issue(t), "x509: certificate has expired or is not yet valid"},
		"server's of another authority": {other.Issue(t), ca.Issue(t), "x509: certificate signed by unknown authority"},
		"client has none":               {ca.Issue(t), tls.Certificate{}, "remote error: tls: certificate required"},
		"client's of another authority": {ca.Issue(t), other.Issue(t), "remote error: tls: unknown certificate authority"},
		"client's expired":              {ca.Issue(t), ca.Issue(t, pki.Expired), "remote error: tls: expired certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := holding(ca.Issue(t))
			srv, place := serve(t, ca, ca.Issue(t))
			proxy := faults.NewProxy(t, srv.Endpoint())
			client := etcdtest.NewClient(t, []string{proxy.Addr()}, logged, etcdtest.TLS(id.config(ca)))
			s := newSession(t, client, lease.Options{}) // the certificates are still valid
			held := rig.MustLock(t, s, "held")

			place.Install(t, row.server)
			id.Store(&row.client)
			proxy.Cut()
			awaitFailure(t, client)
			want := []string{row.want}
			refuses := strings.HasPrefix(row.want, "remote ") // the server; TLS 1.2 always tells the client why, TLS 1.3 not always
			if refuses {
				want = append(want, refused)
			}
			saysWhy(t, want, func(ctx context.Context) error { return second(s.Lock(ctx, "n")) })
			saysWhy(t, want, func(ctx context.Context) error { return second(s.TryLock(ctx, "n")) })
			saysWhy(t, want, opens(client))
			require.NoError(t, held.Context().Err(), "the lock has ended before its deadline")

			if refuses {
				config := id.config(ca)
				config.MaxVersion = tls.VersionTLS12
				old := srv.Client(t, etcdtest.TLS(config))
				awaitFailure(t, old)
				exact := row.want
				if row.client.Certificate == nil {
					exact = "remote error: tls: handshake failure" // TLS 1.2 has no alert for a missing certificate
				}
				saysWhy(t, []string{exact}, opens(old))
			}

			// With valid certificates everything works again.
			place.Install(t, ca.Issue(t))
			mended := ca.Issue(t)
			id.Store(&mended)
			require.NoError(t, rig.MustLock(t, s, "n").Unlock(rig.Bounded(t)))
			require.NoError(t, held.Unlock(rig.Bounded(t)))
		})
	}
}

func TestSession_saysThatOneSideSpeaksNoTLS(t *testing.T) {
	t.Parallel()
	ca := pki.NewAuthority(t, "ours")
	secure, _ := serve(t, ca, ca.Issue(t))
	plain := etcdtest.Start(t, etcdtest.Options{})
	for want, client := range map[string]*clientv3.Client{
		"or if it requires TLS and the client does not use it": secure.Client(t),
		"as a server without TLS does":                         plain.Client(t, etcdtest.TLS(holding(ca.Issue(t)).config(ca))),
	} {
		awaitFailure(t, client)
		saysWhy(t, []string{want}, opens(client))
	}
}
