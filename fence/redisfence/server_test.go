package redisfence_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/redisfence"
)

const redisServer = "redis-server"

// server is a redis-server that a test started. By default it keeps nothing on disk.
type server struct {
	cmd  *exec.Cmd
	dir  string
	addr string // 127.0.0.1:port
	port int
}

// start runs a server with additional settings, each a name and a value. Another process may take the port before the
// server does, so start tries again.
func start(settings ...string) (s *server, err error) {
	for range 3 {
		if s, err = startOnce(settings); err == nil {
			break
		}
	}
	return s, err
}

func startOnce(settings []string) (*server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "redisfence")
	if err != nil {
		return nil, err
	}
	s := &server{dir: dir, addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), port: port}
	args := append([]string{
		"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no",
		"--logfile", filepath.Join(dir, "log"), "--repl-diskless-sync-delay", "0",
	}, settings...)
	s.cmd = exec.Command(redisServer, args...)
	if err := s.cmd.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c := redis.NewClient(&redis.Options{Addr: s.addr, MaxRetries: -1})
	defer func() { _ = c.Close() }()
	// Compare the folder: another process's server may have taken the port.
	err = until(ctx, func() error {
		got, err := c.ConfigGet(ctx, "dir").Result()
		if err == nil && got["dir"] != dir {
			err = fmt.Errorf("port %d has another server", port)
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

// stop kills the server and deletes its data.
func (s *server) stop() error {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait() // It reports that the process was killed.
	return os.RemoveAll(s.dir)
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// until polls f until it succeeds, for states of a server that no event reports.
func until(ctx context.Context, f func() error) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: last: %w", ctx.Err(), err)
		case <-tick.C:
		}
	}
}

func needServer(tb testing.TB) {
	tb.Helper()
	if shared == nil {
		tb.Skip("redis-server is not installed") //nolint:forbidigo // TestMain reads the variable.
	}
}

// newServer starts a server for one test.
func newServer(tb testing.TB, settings ...string) *server {
	tb.Helper()
	needServer(tb)
	s, err := start(settings...)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, s.stop()) })
	return s
}

func (s *server) client(tb testing.TB) *redis.Client {
	tb.Helper()
	c := redis.NewClient(&redis.Options{Addr: s.addr})
	tb.Cleanup(func() { require.NoError(tb, c.Close()) })
	return c
}

// newClient returns a client of the shared server, which is emptied.
func newClient(tb testing.TB) *redis.Client {
	tb.Helper()
	needServer(tb)
	c := shared.client(tb)
	require.NoError(tb, c.FlushAll(tb.Context()).Err())
	return c
}

func newFence(tb testing.TB, c redis.UniversalClient) *redisfence.Marks {
	tb.Helper()
	f, err := redisfence.New(c, redisfence.Options{MaxEra: 32767})
	require.NoError(tb, err)
	return f
}

// as returns a context that carries a token.
func as(tb testing.TB, t fence.Token) context.Context {
	tb.Helper()
	return fence.NewContext(tb.Context(), t)
}

// of returns a context that carries a token of a lock.
func of(tb testing.TB, lock string, t fence.Token) context.Context {
	tb.Helper()
	return fence.WithLock(as(tb, t), lock)
}

func get(tb testing.TB, c redis.UniversalClient, key string) string {
	tb.Helper()
	v, err := c.Get(tb.Context(), key).Result()
	if errors.Is(err, redis.Nil) {
		return ""
	}
	require.NoError(tb, err)
	return v
}

// noSkipEnv is set where everything that tests need is installed, as in CI: there a test must not be skipped.
const noSkipEnv = "LEASEFENCE_NO_SKIP"

// shared is the server of all tests that neither stop nor configure it; nil if none is installed.
var shared *server

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	switch _, missing := exec.LookPath(redisServer); {
	case missing == nil:
		if shared, err = start("--maxmemory-policy", "noeviction"); err != nil {
			return 1, err
		}
		defer func() { err = errors.Join(err, shared.stop()) }()
	case os.Getenv(noSkipEnv) != "":
		return 1, fmt.Errorf("tests would be skipped, and %s is set: %w", noSkipEnv, missing)
	default: // an example cannot skip itself
		if err := flag.Set("test.skip", "^Example"); err != nil {
			return 1, err
		}
	}
	if code = m.Run(); code == 0 {
		err = goleak.Find()
	}
	return code, err
}

// newCluster returns a client of a cluster of one server with all slots.
func newCluster(t *testing.T) *redis.ClusterClient {
	t.Helper()
	bus, err := freePort()
	require.NoError(t, err)
	s := newServer(t, "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus),
		"--cluster-require-full-coverage", "no")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	node := s.client(t)
	require.NoError(t, node.ClusterAddSlotsRange(ctx, 0, 16383).Err())
	require.NoError(t, until(ctx, func() error {
		if info := node.ClusterInfo(ctx).Val(); !strings.Contains(info, "cluster_state:ok") {
			return errors.New("the cluster is not ready")
		}
		return nil
	}))
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{s.addr}})
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func TestMarks_cluster(t *testing.T) {
	c := newCluster(t)
	f := newFence(t, c)
	found, err := f.Probe(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"aof_enabled"}, settings(found))
	require.NoError(t, f.Claim(as(t, 54), "orders"))
	_, err = f.Do(as(t, 54), "orders",
		redisfence.Command("SET", "orders", "the key of the resource's name"),
		redisfence.Command("HSET", "{orders}:7", "state", "paid"),
		redisfence.Command("DEL", "archive:{orders}:6"),
	)
	require.NoError(t, err)
	require.ErrorIs(t, f.Set(as(t, 41), "orders", "{orders}:7", "stale"), fence.ErrStale)
	require.NoError(t, f.ClaimRead(fence.NewReadContext(t.Context(), 60), "other"))
	require.ErrorIs(t, f.Set(as(t, 54), "other", "{other}:7", "stale"), fence.ErrStale)

	for _, elsewhere := range []string{"customers", "orders:7", "{customers}:{orders}"} {
		const want = `a key is not in the hash slot of the mark, "fence:{orders}": ` +
			`want the key "orders" or keys that contain "{orders}": CROSSSLOT`
		err := f.Set(as(t, 55), "orders", elsewhere, 1)
		require.ErrorContains(t, err, `redisfence: do "orders": `+want)
		require.NotErrorIs(t, err, redisfence.ErrUnknown)
		require.Equal(t, "54 0", get(t, c, f.MarkKey("orders")), "nothing was done")
	}

	// Only a server that does not have the slot notices an undeclared key.
	require.NoError(t, c.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
		return node.ClusterDelSlots(ctx, int(node.ClusterKeySlot(ctx, "customers").Val())).Err()
	}))
	undeclared := redisfence.NewScript("return redis.call('SET', 'customers', 1)")
	_, err = f.Run(as(t, 54), "orders", undeclared, nil)
	require.ErrorContains(t, err, "a key is not in the hash slot of the mark")
}

// A replica refuses every verb that could raise a mark, also if the mark need not rise. Otherwise a former primary that
// is a replica now would accept a reader although it does not know of a newer writer. Probe reports both.
func TestMarks_replica(t *testing.T) {
	at := newServer(t)
	primary, replica := at.client(t), newServer(t).client(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.NoError(t, replica.ReplicaOf(ctx, "127.0.0.1", strconv.Itoa(at.port)).Err())
	require.NoError(t, until(ctx, func() error {
		// Not WAIT: on a connection that has written nothing, WAIT counts every replica.
		if info := primary.Info(ctx, "replication").Val(); !strings.Contains(info, "state=online") {
			return errors.New("the replica is not online")
		}
		return nil
	}))
	f, above := newFence(t, replica), newFence(t, primary)
	found, err := above.Probe(ctx)
	require.NoError(t, err)
	require.Equal(t, []string{"aof_enabled", "connected_slaves"}, settings(found))
	require.Contains(t, found[1].Effect, "a fail-over loses the marks")
	found, err = f.Probe(ctx)
	require.NoError(t, err)
	require.Equal(t, []string{"aof_enabled", "role"}, settings(found))
	require.Equal(t, "slave", found[1].Value)

	require.NoError(t, above.Claim(of(t, "accounts", 54), "orders"))
	_, err = primary.Wait(ctx, 1, 10*time.Second).Result()
	require.NoError(t, err)
	_, err = f.Do(of(t, "accounts", 54), "orders", redisfence.Command("GET", "orders"))
	require.ErrorContains(t, err, "READONLY", "it only reads, and the mark need not rise")
	for name, v := range verbs(f) {
		err := call(t, v, 54, "orders")
		if name == "Check" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, "READONLY", name)
		require.NotErrorIs(t, err, redisfence.ErrUnknown)
	}
}

// hooked returns a client whose commands run h.
func hooked(t *testing.T, h hook) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	c.AddHook(h)
	return c
}

// silent returns a client that fails the test if anything is sent.
func silent(t *testing.T) *redis.Client {
	t.Helper()
	return hooked(t, func(context.Context, redis.Cmder, redis.ProcessHook) error {
		t.Error("something was sent")
		return errors.New("not to be sent")
	})
}

// hook runs instead of sending a command; it may call next to send the command.
type hook func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error

func (h hook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := h(ctx, cmd, next)
		cmd.SetErr(err)
		return err
	}
}

func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
