package mix

import (
	"context"
	"crypto/tls"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/pki"
)

// securityFaults take from a client its password, certificate or permission.
func securityFaults() []kind {
	return []kind{
		{"password changed", onClient(func(s *strike, c *client) bool { // auth tokens no longer work either
			return s.dispossess(c, rpctypes.ErrAuthFailed, setPassword("another password"), setPassword(passwordOf(c.id.user)))
		})},
		{"permission revoked", onClient(func(s *strike, c *client) bool {
			return s.dispossess(c, rpctypes.ErrPermissionDenied, forbid, permit)
		})},
		{"certificate replaced", onClient(replaceCertificate)},
		{"certificate refused", onClient(refuseCertificate)},
	}
}

// forbidden reports whether etcd has refused because the client lacks the permission or is not authenticated.
func forbidden(err error) bool {
	return errors.Is(err, rpctypes.ErrPermissionDenied) || errors.Is(err, rpctypes.ErrAuthFailed)
}

// dispossess takes something from a client's user for a while. The fault has met something if the client got the error
// refused meanwhile.
func (s *strike) dispossess(c *client, refused error, take, giveBack func(context.Context, *clientv3.Client, string) error) bool {
	before := c.in.Failed(refused)
	taken := s.meanwhile(
		func(ctx context.Context) error { return take(ctx, s.etcd, c.id.user) },
		func(ctx context.Context) error { return giveBack(ctx, s.etcd, c.id.user) }, s.lastAny)
	return taken && c.in.Failed(refused) > before
}

// awaitAgreement waits until all members run and follow the same leader, and then for requests that they still forward.
func (s *strike) awaitAgreement() {
	_ = insist(s.life, func(ctx context.Context) error {
		leaders := map[uint64]bool{}
		for _, m := range s.cluster.Members {
			status, err := s.etcd.Status(ctx, m.Endpoint())
			if err != nil {
				return err
			}
			leaders[status.Leader] = true
		}
		if len(leaders) > 1 || leaders[0] {
			return errors.New("no agreement yet")
		}
		return nil
	})
	sleep(s.life, 300*time.Millisecond)
}

// replaceCertificate makes a client reconnect with a new certificate. The fault has met something if a renewal is
// answered after that.
func replaceCertificate(s *strike, c *client) bool {
	shown := c.id.offer(s.secured.authority.Issue(s.tb))
	c.each((*faults.Proxy).Cut)
	ctx, cancel := context.WithTimeout(s.ctx, 2*ttl)
	defer cancel()
	answered := c.in.Answered(faults.LeaseKeepAlive) // all connections are new ones
	return c.in.AwaitAnswered(ctx, faults.LeaseKeepAlive, answered+1) == nil && shown()
}

// refuseCertificate makes a client reconnect with a certificate that no member accepts.
func refuseCertificate(s *strike, c *client) bool {
	by, flaws := s.secured.authority, []pki.Flaw{pki.Expired}
	if s.rng.IntN(2) == 0 {
		by, flaws = s.secured.stranger, nil
	}
	shown := c.id.offer(by.Issue(s.tb, flaws...))
	c.each((*faults.Proxy).Cut)
	s.lastAny()
	c.id.offer(s.secured.authority.Issue(s.tb))
	return shown()
}

// secured authenticates members and clients to each other, by certificates on both sides and by users with passwords.
// Each client's user has a role of the same name, which may read and write keys with namesPrefix.
type secured struct {
	authority *pki.Authority
	stranger  *pki.Authority // trusted by nobody
	members   pki.Files
	holders   pki.Files // the certificate of all clients that are processes of their own
	root      *identity
}

const rootUser = "root"

// passwordOf is the password that a user's client knows.
func passwordOf(user string) string { return "the password of " + user }

func setPassword(password string) func(context.Context, *clientv3.Client, string) error {
	return func(ctx context.Context, etcd *clientv3.Client, user string) error {
		_, err := etcd.UserChangePassword(ctx, user, password)
		return err
	}
}

// The kinds of clients: those in this process, those that are processes of their own, and those that come after a
// restore.
const (
	ofClient   = "client"
	ofHolder   = "holder"
	ofNewcomer = "newcomer"
)

// userOf returns the user of a client. A client in this process has the same name.
func userOf(kind string, n int) string { return kind + " " + strconv.Itoa(n) }

func newSecured(tb testing.TB) *secured {
	tb.Helper()
	s := &secured{authority: pki.NewAuthority(tb, "leasefence's mix"), stranger: pki.NewAuthority(tb, "another")}
	s.members, s.holders = pki.NewFiles(tb, s.authority, s.authority.Issue(tb)), pki.NewFiles(tb, s.authority, s.authority.Issue(tb))
	s.root = s.newIdentity(tb, rootUser)
	return s
}

// settings returns the settings of the members. bcrypt has its lowest cost, since members check passwords all the time.
func (s *secured) settings() etcdproc.Settings {
	return etcdproc.Settings{
		AuthTokenTTL: 2, BcryptCost: 4, CertFile: s.members.Cert, KeyFile: s.members.Key, ClientCAFile: s.members.Authority,
	}
}

// enable adds users and turns authentication on.
func (s *secured) enable(ctx context.Context, tb testing.TB, endpoints, users []string) {
	tb.Helper()
	etcd := etcdtest.NewClient(tb, endpoints, etcdtest.TLS(s.root.tls()))
	for _, user := range append([]string{rootUser}, users...) {
		_, err := etcd.UserAdd(ctx, user, passwordOf(user))
		require.NoError(tb, err)
		_, err = etcd.RoleAdd(ctx, user)
		require.NoError(tb, err)
		_, err = etcd.UserGrantRole(ctx, user, user)
		require.NoError(tb, err)
	}
	for _, user := range users {
		require.NoError(tb, permit(ctx, etcd, user))
	}
	_, err := etcd.AuthEnable(ctx)
	require.NoError(tb, err)
}

// permit gives a role the permission that SECURITY.md describes; forbid takes it away.
func permit(ctx context.Context, etcd *clientv3.Client, role string) error {
	_, err := etcd.RoleGrantPermission(ctx, role, namesPrefix, clientv3.GetPrefixRangeEnd(namesPrefix),
		clientv3.PermissionType(clientv3.PermReadWrite))
	return err
}

func forbid(ctx context.Context, etcd *clientv3.Client, role string) error {
	_, err := etcd.RoleRevokePermission(ctx, role, namesPrefix, clientv3.GetPrefixRangeEnd(namesPrefix))
	return err
}

// identity is the user and the certificate of a client in this process. It is safe for concurrent use.
type identity struct {
	user    string
	secured *secured
	cert    atomic.Pointer[tls.Certificate]
	shows   atomic.Int64 // how many connections have presented a certificate
}

func (s *secured) newIdentity(tb testing.TB, user string) *identity {
	tb.Helper()
	i := &identity{user: user, secured: s}
	i.offer(s.authority.Issue(tb))
	return i
}

// offer sets the certificate for new connections. It returns a function that reports whether one has presented it.
func (i *identity) offer(cert tls.Certificate) (shown func() bool) {
	i.cert.Store(&cert)
	before := i.shows.Load()
	return func() bool { return i.shows.Load() > before }
}

func (i *identity) show(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	i.shows.Add(1) // before it takes the certificate: see offer
	return i.cert.Load(), nil
}

func (i *identity) tls() *tls.Config {
	return &tls.Config{RootCAs: i.secured.authority.Pool(), GetClientCertificate: i.show, MinVersion: tls.VersionTLS12}
}

// option makes a client authenticate as this user.
func (i *identity) option() etcdtest.ClientOption {
	return func(cfg *clientv3.Config) {
		cfg.TLS, cfg.Username, cfg.Password = i.tls(), i.user, passwordOf(i.user)
	}
}
