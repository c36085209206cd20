package mix

import (
	"context"
	"crypto/tls"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/pki"
)

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

	mu    sync.Mutex // guards the fields below
	cert  *tls.Certificate
	shown chan struct{} // closed when a connection has presented the certificate
}

func (s *secured) newIdentity(tb testing.TB, user string) *identity {
	tb.Helper()
	cert := s.authority.Issue(tb)
	i := &identity{user: user, secured: s}
	i.offer(&cert)
	return i
}

// offer sets the certificate for new connections. It returns the previous certificate, and a channel that is closed
// when a connection has presented the new one.
func (i *identity) offer(cert *tls.Certificate) (before *tls.Certificate, shown <-chan struct{}) {
	i.mu.Lock()
	defer i.mu.Unlock()
	before, i.cert, i.shown = i.cert, cert, make(chan struct{})
	return before, i.shown
}

func (i *identity) show(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !closed(i.shown) {
		close(i.shown)
	}
	return i.cert, nil
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
