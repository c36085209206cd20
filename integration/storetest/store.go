//go:build unix

package storetest

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
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
