package security_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

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
	for _, chance := range []string{"lease held again", "the key of a lock is not watched"} { // as a renewal or a watch begins
		delete(reached, chance)
	}
	if flag.Lookup("test.run").Value.String() == "" && len(reached) < 9 {
		errs = append(errs, fmt.Errorf("the tests have produced only the lines %v of the golden list", slices.Sorted(maps.Keys(reached))))
	}
	return errors.Join(errs...)
}

const (
	repository = "../../.."
	golden     = "testdata/logged.golden"
)

// logging are the packages that write to a log.
var logging = []string{"lease", "election", "internal", "fence"}

// The golden list has all that the code can log: levels, messages and the names of attributes. Before you add a line,
// check that its attributes contain no secrets: see SECURITY.md.
func TestLog_isWhatTheGoldenListSays(t *testing.T) {
	t.Parallel()
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, strings.Split(strings.TrimSpace(string(want)), "\n"), loggedInSource(t), "check that no secrets are logged, and then change %s", golden)
}

// logCall is the beginning of a call of a [slog.Logger], which is known by its name, callEnd is the end of a call, and
// attribute is the name of an attribute among its arguments.
var (
	logCall   = regexp.MustCompile(`\b(?:log|[lL]ogger|Logger\([^()]*\))\.(With|WithGroup|Debug|Info|Warn|Error|\w+Context|Log|LogAttrs)\(`)
	callEnd   = regexp.MustCompile(`\)[ ,}]*\n`)
	attribute = regexp.MustCompile(`,\s*"(\w+)",`)
)

func loggedInSource(t *testing.T) []string {
	t.Helper()
	lines := []string{}
	for _, dir := range logging {
		require.NoError(t, filepath.WalkDir(filepath.Join(repository, dir), func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.IsDir() && entry.Name() == "integration":
				return filepath.SkipDir
			case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			source, err := os.ReadFile(path)
			for _, at := range logCall.FindAllSubmatchIndex(source, -1) {
				args := source[at[1]:]
				lines = append(lines, logLine(string(source[at[2]:at[3]]), string(args[:callEnd.FindIndex(args)[0]])))
			}
			return err
		}))
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// logLine is the entry of a call in the golden list.
func logLine(method, args string) string {
	if method == "With" {
		args = "," + args // it has no message
	}
	args = strings.ReplaceAll(args, "because(", `"err", (`) // lease's attribute of an error
	names := []string{}
	for _, name := range attribute.FindAllStringSubmatch(args, -1) {
		names = append(names, name[1])
	}
	if at := attribute.FindStringIndex(args); at != nil {
		args = args[:at[0]]
	}
	if method != "With" {
		method = strings.ToUpper(method) + " "
	}
	return fmt.Sprintf("%s%s %s", method, strings.Trim(args, `"`), names)
}
