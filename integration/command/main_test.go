//go:build unix

package command_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
)

// patience bounds every wait of a test. It is far longer than anything takes.
const patience = rig.Patience

// program is the command, with the race detector. plain is the command without it: what only asks etcd, and ends, starts in
// a third of the processor time.
var program, plain string

func TestMain(m *testing.M) {
	etcdproc.Serve()
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
		if signal.Ignored(sig) { // under nohup, or in the background of a shell
			signal.Notify(make(chan os.Signal, 1), sig) // what is caught here is not ignored in the processes that tests start
		}
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "leasefence-command-*")
		if err != nil {
			panic(err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		program, plain = filepath.Join(dir, "leasefence"), filepath.Join(dir, "plain")
		for path, flag := range map[string]string{program: "-race", plain: "-race=false"} {
			out, err := exec.Command("go", "build", "-C", "../../cmd/leasefence", flag, "-o", path).CombinedOutput() //nolint:noctx // no bound: a first build may take minutes
			if err != nil {
				panic(fmt.Sprintf("%v\n%s", err, out))
			}
		}
		defer func() { endBrowser() }()
		return m.Run()
	}())
}

type running struct {
	stdin          io.WriteCloser
	stdout, stderr output

	cmd *exec.Cmd
}

// output collects what was written so far.
type output struct {
	mu   sync.Mutex // guards text
	text []byte
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, p...)
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.text)
}

// await waits until the output contains text.
func (o *output) await(t *testing.T, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(o.String(), text) }, patience, 5*time.Millisecond, text)
}

// start starts the command with a temporary folder of its own, which has to be empty when the test ends.
func start(t *testing.T, endpoint string, args ...string) *running {
	t.Helper()
	return startWith(t, at(endpoint), args...)
}

// newCommand makes the command. It waits as long as a test does: the machine may be busy.
func newCommand(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*patience) // some tests need minutes
	t.Cleanup(cancel)
	path := plain
	if slices.Contains([]string{"lock", "elect", "ui"}, args[0]) {
		path = program
	}
	cmd := exec.CommandContext(ctx, path, args...)
	patiently := []string{"ETCDCTL_DIAL_TIMEOUT=60s", "ETCDCTL_COMMAND_TIMEOUT=60s", "GORACE=atexit_sleep_ms=0"}
	cmd.Env = slices.Concat(os.Environ(), patiently, env)
	return cmd
}

// at is the environment of a command that uses an etcd.
func at(endpoint string) []string { return []string{"ETCDCTL_ENDPOINTS=" + endpoint} }

func startWith(t *testing.T, env []string, args ...string) *running {
	t.Helper()
	temp := t.TempDir()
	t.Cleanup(func() {
		left, err := os.ReadDir(temp)
		require.NoError(t, err)
		require.Empty(t, left, "the program has left something in its temporary folder")
	})
	r := &running{cmd: newCommand(t, append(env, "TMPDIR="+temp), args...)}
	r.cmd.WaitDelay = patience / 10 // a process that outlives the program may keep its output open
	r.cmd.Stdout, r.cmd.Stderr = &r.stdout, &r.stderr
	var err error
	r.stdin, err = r.cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, r.cmd.Start())
	t.Cleanup(func() { _ = r.cmd.Process.Kill() })
	return r
}

func (r *running) signal(t *testing.T, sig os.Signal) {
	t.Helper()
	require.NoError(t, r.cmd.Process.Signal(sig))
}

// end closes the command's input and returns its exit code, 128+n for signal n.
func (r *running) end(t *testing.T) int {
	t.Helper()
	_ = r.stdin.Close() // fails if the command has ended
	err := r.cmd.Wait()
	if _, ok := errors.AsType[*exec.ExitError](err); !ok && !errors.Is(err, exec.ErrWaitDelay) {
		require.NoError(t, err)
	}
	code := r.cmd.ProcessState.ExitCode()
	if status, ok := r.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		code = 128 + int(status.Signal())
	}
	t.Logf("%v: exit code %d\n%s%s", r.cmd.Args[1:], code, &r.stdout, &r.stderr)
	require.NotContains(t, r.stdout.String(), "\x1b", "an escape sequence, though this is no terminal")
	return code
}

// etcd runs a server until the test ends.
func etcd(t *testing.T) (endpoint string, client *clientv3.Client) {
	t.Helper()
	srv := etcdtest.Start(t, etcdtest.Options{})
	return srv.Endpoint(), srv.Client(t)
}

// enableAuth turns authentication on. The password of root is secret.
func enableAuth(t *testing.T, client *clientv3.Client) {
	t.Helper()
	ctx := rig.Bounded(t)
	_, err := client.UserAdd(ctx, "root", "secret")
	require.NoError(t, err)
	_, err = client.UserGrantRole(ctx, "root", "root")
	require.NoError(t, err)
	_, err = client.AuthEnable(ctx)
	require.NoError(t, err)
}

// addUser adds a user with the password secret and a permission on keys that begin with jobs/.
func addUser(t *testing.T, client *clientv3.Client, name string, may clientv3.PermissionType) {
	t.Helper()
	ctx := rig.Bounded(t)
	_, err := client.RoleAdd(ctx, name)
	require.NoError(t, err)
	_, err = client.RoleGrantPermission(ctx, name, "jobs/", clientv3.GetPrefixRangeEnd("jobs/"), may)
	require.NoError(t, err)
	_, err = client.UserAdd(ctx, name, "secret")
	require.NoError(t, err)
	_, err = client.UserGrantRole(ctx, name, name)
	require.NoError(t, err)
}

// endHold ends the hold of a name as an operator does: its key is "deleted", or its lease "revoked".
func endHold(t *testing.T, client *clientv3.Client, name, how string) {
	t.Helper()
	resp, err := client.Get(rig.Bounded(t), name+"/", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Len(t, resp.Kvs, 1)
	contender{string(resp.Kvs[0].Key), clientv3.LeaseID(resp.Kvs[0].Lease), 0}.leave(t, client, how == "revoked")
}

// contender is a key in the queue of a name, and its lease.
type contender struct {
	key   string
	lease clientv3.LeaseID
	rev   int64
}

// contend puts a key that has its lease between two texts. Nobody renews the lease.
func contend(t *testing.T, client *clientv3.Client, ttl int64, before, after, owner string) contender {
	t.Helper()
	granted, err := client.Grant(rig.Bounded(t), ttl)
	require.NoError(t, err)
	key := before + hex(granted.ID) + after
	put, err := client.Put(rig.Bounded(t), key, owner, clientv3.WithLease(granted.ID))
	require.NoError(t, err)
	return contender{key, granted.ID, put.Header.Revision}
}

// leave ends a hold or a wait: its lease ends, or somebody deletes the key.
func (c contender) leave(t *testing.T, client *clientv3.Client, revoke bool) {
	t.Helper()
	var err error
	if revoke {
		_, err = client.Revoke(rig.Bounded(t), c.lease)
	} else {
		_, err = client.Delete(rig.Bounded(t), c.key)
	}
	require.NoError(t, err)
}

// hex is a lease as in the names of keys.
func hex(id clientv3.LeaseID) string { return strconv.FormatInt(int64(id), 16) }

func keys(t *testing.T, client *clientv3.Client, prefix string) []string {
	t.Helper()
	resp, err := client.Get(rig.Bounded(t), prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(t, err)
	keys := []string{}
	for _, kv := range resp.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

// requireNothingLeft checks that etcd has no key but those given, and no lease that another key was on. A slow etcd may
// have more leases: a request for one is repeated if the answer is late, and the lease of the first expires by itself.
func requireNothingLeft(t *testing.T, client *clientv3.Client, but ...string) {
	t.Helper()
	require.ElementsMatch(t, but, keys(t, client, ""))
	all, err := client.Leases(rig.Bounded(t))
	require.NoError(t, err)
	for _, event := range (<-client.Watch(rig.Bounded(t), "", clientv3.WithPrefix(), clientv3.WithRev(1))).Events {
		if !slices.Contains(but, string(event.Kv.Key)) {
			require.NotContains(t, all.Leases, clientv3.LeaseStatus{ID: clientv3.LeaseID(event.Kv.Lease)}, "a lease was not revoked")
		}
	}
}
