//go:build unix

package storetest

import (
	"cmp"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	_ "github.com/go-sql-driver/mysql" // the driver "mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"go.uber.org/goleak"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/leasefence/leasefence/integration/etcdtest"
)

// Store is the database of one test.
type Store struct {
	Kind   Kind
	Driver string
	DSN    string
}

var databases atomic.Int64

// New makes a database.
func New(tb testing.TB, kind Kind) *Store {
	tb.Helper()
	if kind == SQLite {
		return &Store{Kind: kind, Driver: "sqlite", DSN: "file:" + filepath.Join(tb.TempDir(), "db") +
			"?_pragma=busy_timeout(30000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)"}
	}
	requireInstalled(tb, kind)
	s, err := running(kind)
	if err != nil {
		tb.Fatal(err)
	}
	c := commands[kind]
	name := fmt.Sprintf("test%d", databases.Add(1))
	admin := (&Store{Kind: kind, Driver: c.driver, DSN: c.dsn(s.dir, "")}).DB(tb)
	if _, err := admin.ExecContext(tb.Context(), "CREATE DATABASE "+name); err != nil {
		tb.Fatalf("storetest: create a database: %v", err)
	}
	return &Store{Kind: kind, Driver: c.driver, DSN: c.dsn(s.dir, name)}
}

// requireInstalled skips a test of a database that is not installed.
func requireInstalled(tb testing.TB, kind Kind) {
	tb.Helper()
	if name := kind.missing(); name != "" {
		etcdtest.Skip(tb, "%s is not installed: no program %s", kind, name)
	}
}

// DB opens a new pool, which the test's cleanup closes.
func (s *Store) DB(tb testing.TB) *sql.DB {
	tb.Helper()
	db, err := sql.Open(s.Driver, s.DSN)
	if err != nil {
		tb.Fatalf("storetest: open %s: %v", s.Kind, err)
	}
	tb.Cleanup(func() { _ = db.Close() })
	return db
}

// Main runs a package's tests, stops the servers, and fails the tests if a goroutine is left. It does not return.
func Main(m *testing.M) {
	code := m.Run()
	if err := stopAll(); err != nil {
		fmt.Fprintf(os.Stderr, "storetest: stop: %v\n", err)
		code = max(code, 1)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintf(os.Stderr, "storetest: tests passed and left goroutines behind: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

// Kind is a database.
type Kind string

// The databases.
const (
	PostgreSQL Kind = "PostgreSQL"
	MariaDB    Kind = "MariaDB"
	SQLite     Kind = "SQLite"

	// DurablePostgreSQL flushes its log at each commit, as in production. The others do not, which is faster and makes
	// no difference to clients.
	DurablePostgreSQL Kind = "durable PostgreSQL"
)

// command is what differs between the servers. DIR stands for the folder of the server's data.
type command struct {
	init, run string // the commands
	user      string // to run as if the test is root
	signal    string // ends the server at once
	driver    string
	socket    string // a DSN without the database
	admin     string // the database that there is at first
}

func postgreSQL(settings string) command {
	return command{
		init: "initdb -D DIR/data -U postgres -A trust -E UTF8 --locale=C -N",
		run: "postgres -D DIR/data -k DIR -c listen_addresses= -c max_connections=120 -c deadlock_timeout=100ms" +
			settings,
		user:   "postgres",
		signal: "QUIT",
		driver: "pgx", socket: "host=DIR user=postgres dbname=", admin: "postgres",
	}
}

var commands = map[Kind]command{
	PostgreSQL:        postgreSQL(" -c fsync=off -c synchronous_commit=off -c full_page_writes=off"),
	DurablePostgreSQL: postgreSQL(""),
	MariaDB: {
		init: "mariadb-install-db --no-defaults --datadir=DIR/data --auth-root-authentication-method=normal --skip-test-db",
		run: "mariadbd --no-defaults --datadir=DIR/data --socket=DIR/sock --pid-file=DIR/pid --skip-networking " +
			"--innodb-buffer-pool-size=64M --innodb-flush-log-at-trx-commit=0",
		user:   "mysql",
		signal: "KILL",
		driver: "mysql", socket: "root@unix(DIR/sock)/",
	},
}

// dsn returns the DSN of a database, by default of the one that there is at first.
func (c command) dsn(dir, database string) string {
	return strings.ReplaceAll(c.socket, "DIR", dir) + cmp.Or(database, c.admin)
}

// arguments returns the path of the program and its arguments. The folder's name may contain spaces.
func arguments(dir, line string) []string {
	args := strings.Fields(line)
	args[0] = program(args[0])
	for i := range args[1:] {
		args[i+1] = strings.ReplaceAll(args[i+1], "DIR", dir)
	}
	return args
}

// missing returns a program of the kind that is not installed, or "".
func (k Kind) missing() string {
	for _, line := range []string{commands[k].init, commands[k].run} {
		if name, _, _ := strings.Cut(line, " "); program(name) == "" {
			return name
		}
	}
	return ""
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
