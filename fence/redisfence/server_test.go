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
