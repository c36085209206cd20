package security_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

func TestMain(m *testing.M) { etcdtest.Main(m, logHasNoSecrets) }

const (
	// shortTTL is for leases that a test loses by their deadline. A busy machine must still manage to hold them for a
	// while.
	shortTTL = 4 * time.Second
	// longTTL is for leases that are renewed a few times in a test.
	longTTL = 6 * time.Second
)

// second drops the first of two results.
func second[T any](_ T, err error) error { return err }

// Everything that the sessions and clients of this package log, at the lowest level, and the texts that must not be in
// it, with what each of them is.
var (
	oursLog, etcdsLog bytes.Buffer
	ours, etcds       = zapcore.Lock(zapcore.AddSync(&oursLog)), zapcore.Lock(zapcore.AddSync(&etcdsLog))
	secrets           = struct {
		sync.Mutex
		all map[string]string
	}{all: map[string]string{}}
)

// secret marks a text that must not be logged.
func secret(what, text string) string {
	secrets.Lock()
	defer secrets.Unlock()
	secrets.all[text] = what
	return text
}

// logged makes a client log, and marks the lease IDs and tokens that it is given as secrets.
func logged(cfg *clientv3.Config) {
	cfg.Logger = zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), etcds, zapcore.DebugLevel))
	learn := func(
		ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		err := invoke(ctx, method, req, reply, cc, opts...)
		switch reply := reply.(type) {
		case *etcdserverpb.LeaseGrantResponse:
			if reply.ID != 0 {
				secret("a lease ID", strconv.FormatInt(reply.ID, 10))
				secret("a lease ID in hex", strconv.FormatInt(reply.ID, 16))
			}
		case *etcdserverpb.AuthenticateResponse:
			if reply.Token != "" {
				secret("a token", reply.Token)
			}
		}
		return err
	}
	cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainUnaryInterceptor(learn))
}

// newSession returns a session below "jobs/", or another prefix, that logs.
func newSession(t *testing.T, client *clientv3.Client, opts lease.Options) *lease.Session {
	t.Helper()
	if opts.Prefix == "" {
		opts.Prefix = "jobs/"
	}
	opts.Owner = secret("an owner", "owner of everything")
	opts.Logger = slog.New(slog.NewJSONHandler(ours, &slog.HandlerOptions{Level: slog.Level(math.MinInt32)}))
	return rig.NewSession(t, client, opts)
}

// logHasNoSecrets checks the logs of all tests: passwords, authentication tokens, owners, values and lease IDs are never
// logged, and each line of ours is in the golden list.
func logHasNoSecrets() error {
	var errs []error
	for whose, log := range map[string]string{"ours": oursLog.String(), "of etcd's client": etcdsLog.String()} {
		for text, what := range secrets.all {
			if i := strings.Index(log, text); i >= 0 {
				errs = append(errs, fmt.Errorf("%s in the log, %s: …%.300s", what, whose, log[max(i-100, 0):]))
			}
		}
	}
	list, err := os.ReadFile(golden)
	if err != nil {
		return err
	}
	reached := map[string]bool{}
	for line := range strings.Lines(oursLog.String()) {
		var record struct{ Level, Msg string }
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			return err
		}
		if !strings.Contains("\n"+string(list), "\n"+record.Level+" "+record.Msg+" [") {
			errs = append(errs, fmt.Errorf("not in the golden list: %s", line))
		}
		reached[record.Msg] = true
	}
	if flag.Lookup("test.run").Value.String() == "" && len(reached) < 10 {
		errs = append(errs, fmt.Errorf("the tests have produced only the lines %v of the golden list", slices.Sorted(maps.Keys(reached))))
	}
	return errors.Join(errs...)
}

// server is a server with the users of SECURITY.md: "worker" may read and write below "jobs/".
type server struct {
	*etcdtest.Server
	root *clientv3.Client
}

// password is the password of a user.
func password(user string) string { return secret("a password", "password-of-"+user) }

// start executes the commands of SECURITY.md.
func start(t *testing.T) *server {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, "SECURITY.md"))
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)\n## Permissions\n.*?\n```sh\n(.*?\n)```\n").FindSubmatch(text)
	require.NotNil(t, block, "no commands")
	srv := etcdtest.Start(t, etcdtest.Options{})
	for command := range strings.Lines(string(block[1])) {
		words := strings.Fields(command)
		require.Equal(t, "etcdctl", words[0], command)
		etcdctl := exec.CommandContext(rig.Bounded(t), etcdtest.Etcdctl(t), append(words[1:], "--endpoints", srv.Endpoint())...)
		if words[1] == "user" && words[2] == "add" {
			etcdctl.Args = append(etcdctl.Args, "--interactive=false")
			etcdctl.Stdin = strings.NewReader(password(words[3]))
		}
		out, err := etcdctl.CombinedOutput()
		require.NoError(t, err, "%s%s", command, out)
	}
	s := &server{Server: srv}
	s.root = s.as(t, "root")
	return s
}

// as returns a client of a user.
func (s *server) as(t *testing.T, user string, opts ...etcdtest.ClientOption) *clientv3.Client {
	t.Helper()
	return s.Client(t, append(opts, logged, etcdtest.User(user, password(user)))...)
}

// add adds a user without a role, and returns a client of that user.
func (s *server) add(t *testing.T, user string) *clientv3.Client {
	t.Helper()
	require.NoError(t, second(s.root.UserAdd(rig.Bounded(t), user, password(user))))
	return s.as(t, user)
}

// permit gives the worker permission on a prefix.
func (s *server) permit(t *testing.T, prefix string) {
	t.Helper()
	require.NoError(t, second(s.root.RoleGrantPermission(rig.Bounded(t), "worker", prefix, clientv3.GetPrefixRangeEnd(prefix),
		clientv3.PermissionType(clientv3.PermReadWrite))))
}

// forbid revokes the worker's permission.
func (s *server) forbid(t *testing.T) {
	t.Helper()
	require.NoError(t, second(s.root.RoleRevokePermission(rig.Bounded(t), "worker", "jobs/", clientv3.GetPrefixRangeEnd("jobs/"))))
}
