package sqlfence_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql" // the driver "mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/integration/etcdproc"
	"github.com/leasefence/leasefence/integration/etcdtest"
)

// startTimeout is far longer than a start takes.
const startTimeout = 5 * time.Minute

// server is a private database server of an installed package, with its data in a temporary folder and a Unix socket for
// clients. It starts with the first test that needs it and ends in TestMain, or with the process. In its texts DIR stands
// for the folder.
type server struct {
	init, run string // the commands
	user      string // to run as if the test is root, which the server refuses to run as
	signal    string // ends the server at once
	driver    string
	dsn       string // of the database that there is at first
	create    string // makes a store of this name
	named     string // the end of the store's DSN

	dir   string
	stdin io.Closer // closing it stops the server
	cmd   *exec.Cmd
	made  int // stores
}

func postgreSQL(settings string) *server {
	return &server{
		init: "initdb -D DIR/data -U postgres -A trust -E UTF8 --locale=C -N",
		run: "postgres -D DIR/data -k DIR -c listen_addresses= -c max_connections=120 -c deadlock_timeout=100ms" +
			settings,
		user: "postgres", signal: "QUIT", driver: "pgx", dsn: "host=DIR user=postgres dbname=postgres",
		create: "CREATE SCHEMA %s", named: " search_path=%s", // a database would cost a hundred times more
	}
}

func mariaDBServer(settings string) *server {
	return &server{
		init: "mariadb-install-db --no-defaults --datadir=DIR/data --auth-root-authentication-method=normal --skip-test-db",
		run: "mariadbd --no-defaults --datadir=DIR/data --socket=DIR/sock --pid-file=DIR/pid --skip-networking " +
			"--innodb-buffer-pool-size=64M --innodb-flush-log-at-trx-commit=0 --skip-innodb-doublewrite --innodb-file-per-table=0" + settings,
		user: "mysql", signal: "KILL", driver: "mysql", dsn: "root@unix(DIR/sock)/", create: "CREATE DATABASE %s", named: "%s",
	}
}

var (
	servers = map[sqlfence.Dialect]*server{
		sqlfence.PostgreSQL: postgreSQL(" -c fsync=off -c synchronous_commit=off -c full_page_writes=off"),
		sqlfence.MySQL:      mariaDBServer(""),
	}
	durable = postgreSQL("") // it flushes its log at each commit, as in production, which makes no difference to clients
	started []*server
)

// TestMain stops the servers, and fails the tests if a goroutine is left.
func TestMain(m *testing.M) {
	code := m.Run()
	for _, s := range started {
		if err := s.stop(); err != nil {
			fmt.Fprintf(os.Stderr, "stop a server: %v\n", err)
			code = max(code, 1)
		}
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintf(os.Stderr, "tests passed and left goroutines behind: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

// store is the database of one test.
type store struct{ driver, dsn string }

func newStore(tb testing.TB, dialect sqlfence.Dialect) store {
	tb.Helper()
	if dialect == sqlfence.SQLite {
		return store{"sqlite", "file:" + filepath.Join(tb.TempDir(), "db") +
			"?_pragma=busy_timeout(30000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)"}
	}
	return servers[dialect].store(tb)
}

// store makes a store.
func (s *server) store(tb testing.TB) store {
	tb.Helper()
	if s.stdin == nil {
		s.start(tb)
	}
	s.made++
	name, all := fmt.Sprint("test", s.made), store{s.driver, s.in(s.dsn)}
	_, err := all.open(tb).ExecContext(tb.Context(), fmt.Sprintf(s.create, name))
	require.NoError(tb, err)
	all.dsn += fmt.Sprintf(s.named, name)
	return all
}

// open opens a new pool, which the test's cleanup closes.
func (s store) open(tb testing.TB) *sql.DB {
	tb.Helper()
	db, err := sql.Open(s.driver, s.dsn)
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = db.Close() })
	return db
}

// watch runs a server until the standard input of the shell ends: when the test closes it, or when the test's process
// ends in any way.
const watch = `signal=$1; shift; "$@" </dev/null & pid=$!; cat >/dev/null; kill -s "$signal" $pid; wait $pid`

// start runs the server and waits until it answers. If it is not installed, [etcdtest.Skip] skips the test.
func (s *server) start(tb testing.TB) {
	tb.Helper()
	require.Empty(tb, s.dir, "the server has not started before")
	for _, line := range []string{s.init, s.run} {
		if name, _, _ := strings.Cut(line, " "); program(name) == "" {
			etcdtest.Skip(tb, "no program %s is installed", name)
		}
	}
	// Not the test's temporary folder: the server outlives the test, and a socket's path has to be short.
	dir, err := os.MkdirTemp("", "sqlfence") //nolint:usetesting // It goes on.
	require.NoError(tb, err)
	s.dir = dir
	started = append(started, s)
	log, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(tb, err)
	defer log.Close() //nolint:errcheck // The server has its own handle.
	attr := s.unprivileged(tb)
	command := func(ctx context.Context, line string, before ...string) *exec.Cmd {
		args := strings.Fields(line)
		args[0] = program(args[0])
		for i := range args {
			args[i] = s.in(args[i]) // the folder's name may contain spaces
		}
		args = append(before, args...)
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Dir, cmd.SysProcAttr, cmd.Stdout, cmd.Stderr = dir, attr, log, log
		cmd.Env = append(os.Environ(), "TMPDIR="+dir) // MariaDB clears its folder of temporary tables when it starts
		return cmd
	}
	said := func() string {
		out, _ := os.ReadFile(log.Name())
		return string(out[max(0, len(out)-600):])
	}
	ctx, cancel := context.WithTimeout(tb.Context(), startTimeout)
	defer cancel()
	err = command(ctx, s.init).Run()
	require.NoError(tb, err, said())
	s.cmd = command(context.Background(), s.run, "/bin/sh", "-c", watch, "sh", s.signal) //nolint:usetesting // It outlives the test.
	s.stdin, err = s.cmd.StdinPipe()
	require.NoError(tb, err)
	require.NoError(tb, s.cmd.Start())
	db := store{s.driver, s.in(s.dsn)}.open(tb)
	if !assert.Eventually(tb, func() bool { return db.PingContext(ctx) == nil }, startTimeout, 20*time.Millisecond) {
		tb.Fatal(said())
	}
}

// in returns a text with the server's folder.
func (s *server) in(text string) string { return strings.ReplaceAll(text, "DIR", s.dir) }

// stop ends the server and removes its data. When it returns, the processes have ended.
func (s *server) stop() (err error) {
	if s.stdin != nil {
		_ = s.stdin.Close()
		_ = s.cmd.Wait() // the status is that of the signal
	}
	// A server's helpers may still be writing their last file.
	for range 50 {
		if err = os.RemoveAll(s.dir); err == nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return err
}

// unprivileged returns the attributes of the server's commands. If this process is root, they run as the user that the
// package has made, or as nobody, who gets the folder.
func (s *server) unprivileged(tb testing.TB) *syscall.SysProcAttr {
	tb.Helper()
	// A separate process group: an interrupt from the keyboard reaches only the tests, which then stop the server.
	attr := &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() != 0 {
		return attr
	}
	u, err := user.Lookup(s.user)
	if err != nil {
		u, err = user.Lookup("nobody")
	}
	require.NoError(tb, err)
	uid, err := strconv.Atoi(u.Uid)
	require.NoError(tb, err)
	gid, err := strconv.Atoi(u.Gid)
	require.NoError(tb, err)
	require.NoError(tb, os.Chown(s.dir, uid, gid))
	attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return attr
}

// program returns the path of a program, or "". On Debian the servers of PostgreSQL and MariaDB are not in a user's
// PATH.
func program(name string) string {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	slices.Sort(found)
	slices.Reverse(found) // the newest first
	for _, path := range append(found, name, "/usr/sbin/"+name) {
		if path, err := exec.LookPath(path); err == nil {
			return path
		}
	}
	return ""
}

// nodes are those of a Galera cluster, once it runs.
var nodes []*server

// galera returns a rig for each node of a cluster of two, both writable.
func galera(t *testing.T) (rigs [2]*rig) {
	t.Helper()
	provider, _ := filepath.Glob("/usr/lib*/galera*/libgalera_smm.so")
	if len(provider) == 0 {
		etcdtest.Skip(t, "Galera is not installed: no libgalera_smm.so")
	}
	if nodes == nil {
		startGalera(t, provider[0])
	}
	store := nodes[0].store(t)
	for i, node := range nodes {
		store.dsn = strings.Replace(store.dsn, nodes[0].dir, node.dir, 1)
		if i > 0 {
			store.dsn += "?wsrep_sync_wait=15" // reads wait until the node has applied all earlier commits of the other
		}
		rigs[i] = newRigOn(t, mariaDB, store)
	}
	return rigs
}

func startGalera(t *testing.T, provider string) {
	t.Helper()
	var ports [6]string // each node needs the other's before it listens
	for i := range ports {
		addr, err := etcdproc.PickAddr()
		require.NoError(t, err)
		_, ports[i], err = net.SplitHostPort(addr)
		require.NoError(t, err)
	}
	for i := range 2 {
		own := ports[3*i:]
		settings := fmt.Sprintf(" --binlog-format=ROW --innodb-autoinc-lock-mode=2 --wsrep-on=ON --wsrep-provider=%s "+
			"--wsrep-cluster-address=gcomm://127.0.0.1:%s,127.0.0.1:%s --wsrep-sst-method=rsync --wsrep-node-address=127.0.0.1:%s "+
			"--wsrep-sst-receive-address=127.0.0.1:%s "+
			"--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:%[4]s;ist.recv_addr=127.0.0.1:%[6]s;gcache.size=16M",
			provider, ports[0], ports[3], own[0], own[1], own[2])
		if i == 0 {
			settings += " --wsrep-new-cluster"
		}
		node := mariaDBServer(settings)
		node.start(t)
		db := store{node.driver, node.in(node.dsn)}.open(t)
		require.Eventually(t, func() bool {
			var ready, size int
			err := db.QueryRowContext(t.Context(), "SELECT SUM(VARIABLE_NAME = 'WSREP_READY' AND VARIABLE_VALUE = 'ON'), "+
				"SUM(VARIABLE_NAME = 'WSREP_CLUSTER_SIZE' AND VARIABLE_VALUE = ?) FROM information_schema.GLOBAL_STATUS", i+1).
				Scan(&ready, &size)
			return err == nil && ready == 1 && size == 1
		}, startTimeout, 20*time.Millisecond, "the cluster does not get ready")
		nodes = append(nodes, node)
	}
}
