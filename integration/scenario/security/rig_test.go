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

// secured is a server whose user "app" may read and write below "jobs/".
type secured struct {
	*etcdtest.Server
	root *clientv3.Client // with the user root, whose password is "root"
}

// newSecured starts a server that does not demand authentication yet.
func newSecured(t *testing.T) *secured {
	t.Helper()
	srv := etcdtest.Start(t, etcdtest.Options{})
	s := &secured{srv, srv.Client(t, logged, etcdtest.User("root", "root"))}
	ctx := rig.Bounded(t)
	for user, password := range map[string]string{"root": "root", "app": secret("a password", "first password")} {
		require.NoError(t, second(s.root.UserAdd(ctx, user, password)))
		require.NoError(t, second(s.root.RoleAdd(ctx, user)))
		require.NoError(t, second(s.root.UserGrantRole(ctx, user, user)))
	}
	s.permit(t)
	return s
}

func startSecured(t *testing.T) *secured {
	t.Helper()
	s := newSecured(t)
	require.NoError(t, second(s.root.AuthEnable(rig.Bounded(t))))
	return s
}

// permit grants the user's permission, and forbid revokes it.
func (s *secured) permit(t *testing.T) {
	t.Helper()
	require.NoError(t, second(s.root.RoleGrantPermission(rig.Bounded(t), "app", "jobs/", clientv3.GetPrefixRangeEnd("jobs/"),
		clientv3.PermissionType(clientv3.PermReadWrite))))
}

func (s *secured) forbid(t *testing.T) {
	t.Helper()
	require.NoError(t, second(s.root.RoleRevokePermission(rig.Bounded(t), "app", "jobs/", clientv3.GetPrefixRangeEnd("jobs/"))))
}

// app returns a client of the user "app".
func (s *secured) app(t *testing.T, opts ...etcdtest.ClientOption) *clientv3.Client {
	t.Helper()
	return s.Client(t, append(opts, logged, etcdtest.User("app", "first password"))...)
}
