// Package docs_test tests the documents: the tests and files that they name exist, their links lead somewhere, and their
// Go code compiles.
package docs_test

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/lease"
	"github.com/leasefence/leasefence/lease/leasetest"
)

const root = "../.."

var (
	testNamed = regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Za-z0-9]\\w*)`")
	testFunc  = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	link      = regexp.MustCompile(`\]\(([^)\s]+)\)`)
)

// documents returns the texts of the project's Markdown files, by their paths.
func documents(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		for _, path := range paths {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			all[path] = string(text)
		}
	}
	require.NotEmpty(t, all)
	return all
}

// sources returns the texts of the files of all modules whose names end in suffix.
func sources(t *testing.T, suffix string) (all []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, suffix) {
			return err
		}
		text, err := os.ReadFile(path)
		all = append(all, string(text))
		return err
	}))
	return all
}

func TestDocuments_nameTestsThatExist(t *testing.T) {
	known, named := map[string]bool{}, 0
	for _, source := range sources(t, "_test.go") {
		for _, m := range testFunc.FindAllStringSubmatch(source, -1) {
			known[m[1]] = true
		}
	}
	for path, text := range documents(t) {
		for _, m := range testNamed.FindAllStringSubmatch(text, -1) {
			named++
			require.True(t, known[m[1]], "%s names %s, which does not exist", path, m[1])
		}
	}
	require.Greater(t, named, 50)
}

func TestDocuments_linkToWhatIsThere(t *testing.T) {
	for path, text := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target, _, _ := strings.Cut(m[1], "#")
			if target == "" || strings.Contains(target, "://") {
				continue
			}
			_, err := os.Stat(filepath.Join(filepath.Dir(path), target))
			require.NoError(t, err, "%s links to %s", path, target)
		}
	}
}

var (
	pathNamed = regexp.MustCompile("`([a-z]+(?:/[\\w.]+)*/?)`")
	arrow     = regexp.MustCompile(`(?m)^\t(\w+) --> (\w+)$`)
)

// The files and folders that the map names exist, and its arrows are imports.
func TestMap_isOfThisTree(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "map.md"))
	require.NoError(t, err)
	named := pathNamed.FindAllSubmatch(text, -1)
	require.Greater(t, len(named), 40)
	for _, m := range named {
		_, err := os.Stat(filepath.Join(root, string(m[1])))
		require.NoError(t, err, "the map names %s", m[1])
	}

	arrows := arrow.FindAllSubmatch(text, -1)
	require.Greater(t, len(arrows), 10)
	for _, m := range arrows {
		from, to := strings.ReplaceAll(string(m[1]), "_", "/"), strings.ReplaceAll(string(m[2]), "_", "/")
		files, err := filepath.Glob(filepath.Join(root, from, "*.go"))
		require.NoError(t, err)
		imports := false
		for _, file := range files {
			source, err := os.ReadFile(file)
			require.NoError(t, err)
			imports = imports || !strings.HasSuffix(file, "_test.go") &&
				strings.Contains(string(source), `"github.com/leasefence/leasefence/`+to+`"`)
		}
		require.True(t, imports, "the map has an arrow from %s to %s", from, to)
	}
}

// service is the service that docs/testing.md tests.
type service struct{ leading atomic.Bool }

func (s *service) leads() bool { return s.leading.Load() }

func start(t *testing.T, session *lease.Session) *service {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	s, done := &service{}, make(chan struct{})
	go func() {
		defer close(done)
		_ = election.Run(ctx, session, "service", election.Options{}, func(ctx context.Context, _ fence.Token) error {
			s.leading.Store(true)
			defer s.leading.Store(false)
			<-ctx.Done()
			return nil
		}, election.WithRejoin())
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return s
}

func TestService_stepsBackWhenItIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := leasetest.New(t)
		s := srv.Session(t, lease.Options{Owner: "a"})
		svc := start(t, s.Session) // campaigns for "service"
		synctest.Wait()            // all that can happen now has happened
		require.True(t, svc.leads())

		s.Partition()
		time.Sleep(30 * time.Second) // of the bubble
		synctest.Wait()
		require.False(t, svc.leads())
		_, somebody := srv.Holder("service")
		require.False(t, somebody)

		s.Heal()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		require.True(t, svc.leads())
	})
}

func TestLedger_refusesTheLateWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := leasetest.New(t)
		a, b := srv.Session(t, lease.Options{}), srv.Session(t, lease.Options{})
		var book ledger
		first, err := a.Lock(t.Context(), "ledger")
		require.NoError(t, err)
		require.NoError(t, a.Expire(t.Context()))

		second, err := b.Lock(t.Context(), "ledger")
		require.NoError(t, err)
		require.NoError(t, book.Append(second.Context(), second.Token(), "second"))
		require.ErrorIs(t, book.Append(first.Context(), first.Token(), "late"), fence.ErrStale)
	})
}

// README.md and the pages in docs/ show the code of the functions below, which a test runs on a real server.

func doTheWork(ctx context.Context) error { return ctx.Err() }

func useLease(ctx context.Context, client *clientv3.Client, ledger *ledger, entry string) (err error) {
	session, err := lease.NewSession(ctx, client, lease.Options{TTL: 10 * time.Second}) // your *clientv3.Client
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, session.Close(context.WithoutCancel(ctx))) }() // err is the named result

	return session.Do(ctx, "invoices/nightly", func(ctx context.Context, token fence.Token) error {
		// ctx ends before anybody else can get the lock. Send the token with every write.
		return ledger.Append(ctx, token, entry)
	})
}

type ledger struct {
	guard   fence.Guard // refuses a token that is older than the newest one it has seen
	entries []string
}

func (l *ledger) Append(ctx context.Context, token fence.Token, entry string) error {
	return l.guard.DoContext(ctx, "ledger", token, func() error { // check and write are one step
		l.entries = append(l.entries, entry)
		return nil
	})
}

func useMarks(ctx context.Context, db *sql.DB, marks *sqlfence.Marks, amount int) error {
	if err := marks.Claim(ctx, db, "ledger"); err != nil { // once after the grant, before the first read
		return err
	}
	return marks.Do(ctx, db, "ledger", func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO entries (amount) VALUES ($1)", amount)
		return err // if a newer holder has written, Do returns an error that matches fence.ErrStale
	})
}

func useTryLock(ctx context.Context, session *lease.Session) error {
	lock, err := session.TryLock(ctx, "invoices/nightly")
	if errors.Is(err, lease.ErrLocked) {
		return nil // somebody else holds it; err says who
	}
	if err != nil {
		return err
	}
	return errors.Join(doTheWork(lock.Context()), lock.Unlock(ctx))
}

func useRun(ctx context.Context, session *lease.Session, serve func(context.Context, fence.Token) error) error {
	return election.Run(ctx, session, "invoices", election.Options{Value: "10.0.0.7:8080"},
		func(ctx context.Context, token fence.Token) error {
			// Leads until ctx ends, which is before anybody else can lead. Run waits for this function to return,
			// releases the leadership and campaigns again. An error of a leader that still leads ends Run.
			return serve(ctx, token)
		}, election.WithRejoin())
}

func useTicks(ctx context.Context, session *lease.Session, every time.Duration, report func(context.Context) error) error {
	return election.Run(ctx, session, "report", election.Options{},
		func(ctx context.Context, _ fence.Token) error {
			ticks := time.NewTicker(every)
			defer ticks.Stop()
			for {
				select {
				case <-ticks.C:
					if err := report(ctx); err != nil { // fenced: ctx carries the token
						return err
					}
				case <-ctx.Done():
					return nil
				}
			}
		}, election.WithRejoin())
}

func mutexOfEtcd(ctx context.Context, client *clientv3.Client) error {
	session, err := concurrency.NewSession(client, concurrency.WithTTL(10))
	if err != nil {
		return err
	}
	defer session.Close() //nolint:errcheck // The usual code.

	mutex := concurrency.NewMutex(session, "invoices/nightly")
	if err := mutex.Lock(ctx); err != nil {
		return err
	}
	defer mutex.Unlock(context.Background()) //nolint:errcheck // The usual code.
	return doTheWork(ctx)                    // nothing tells it that the lock is lost
}

func adoptTheirs(ctx context.Context, client *clientv3.Client, theirs *concurrency.Session) error {
	session, err := lease.Adopt(ctx, client, theirs.Lease(), lease.Options{})
	if err != nil {
		return err
	}
	// Locks of session and mutexes of theirs are on one lease.
	return session.Close(ctx)
}

func advisoryLock(ctx context.Context, db *sql.DB, session *lease.Session, marks *sqlfence.Marks) error {
	return session.Do(ctx, "accounts", func(ctx context.Context, _ fence.Token) error {
		if err := marks.Claim(ctx, db, "accounts"); err != nil {
			return err
		}
		// As many transactions as it takes, on any connection of the pool. Each one checks the token.
		return marks.Do(ctx, db, "accounts", func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance - 10 WHERE id = 7")
			return err
		})
	})
}

func TestDocuments_theirCodeRuns(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := etcdtest.Start(t, etcdtest.Options{}).Client(t)
	book := &ledger{}
	require.NoError(t, useLease(ctx, client, book, "first"))
	require.NoError(t, useLease(ctx, client, book, "second"))
	require.Equal(t, []string{"first", "second"}, book.entries)
	require.ErrorIs(t, book.Append(ctx, 1, "late"), fence.ErrStale)

	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "db"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	_, err = db.ExecContext(ctx, "CREATE TABLE entries (amount INTEGER); CREATE TABLE accounts (id INTEGER, balance INTEGER); INSERT INTO accounts VALUES (7, 50)")
	require.NoError(t, err)
	marks, err := sqlfence.New(sqlfence.SQLite, sqlfence.Options{})
	require.NoError(t, err)
	require.NoError(t, marks.Migrate(ctx, db))
	require.NoError(t, useMarks(fence.NewContext(ctx, 54), db, marks, 3))
	require.ErrorIs(t, useMarks(fence.NewContext(ctx, 41), db, marks, 4), fence.ErrStale)

	session, err := lease.NewSession(ctx, client, lease.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, session.Close(context.WithoutCancel(ctx))) }()
	require.NoError(t, useTryLock(ctx, session))
	require.NoError(t, advisoryLock(ctx, db, session, marks))
	var balance int
	require.NoError(t, db.QueryRowContext(ctx, "SELECT balance FROM accounts").Scan(&balance))
	require.Equal(t, 40, balance)

	require.NoError(t, mutexOfEtcd(ctx, client))
	theirs, err := concurrency.NewSession(client)
	require.NoError(t, err)
	require.NoError(t, adoptTheirs(ctx, client, theirs))
	require.NoError(t, theirs.Close())

	done := errors.New("done")
	require.ErrorIs(t, useRun(ctx, session, func(context.Context, fence.Token) error { return done }), done)
	require.ErrorIs(t, useTicks(ctx, session, time.Millisecond, func(ctx context.Context) error {
		_, ok := fence.FromContext(ctx)
		require.True(t, ok)
		return done
	}), done)
}

// elision is a line that stands for code that is left out.
const elision = "..."

var (
	goBlock = regexp.MustCompile("(?s)```go\n(.*?)```")
	linted  = regexp.MustCompile(` //nolint:.*`)
)

// lines returns the lines that are not empty, without indentation and comments for the linter, each between line feeds.
func lines(text string) string {
	var all strings.Builder
	all.WriteString("\n")
	for line := range strings.Lines(text) {
		if line = strings.Join(strings.Fields(linted.ReplaceAllString(line, "")), " "); line != "" {
			all.WriteString(line + "\n")
		}
	}
	return all.String()
}

// The Go code in a document is in a Go file too, so that it compiles.
func TestDocuments_showCodeThatCompiles(t *testing.T) {
	var code strings.Builder
	for _, source := range sources(t, ".go") {
		code.WriteString(lines(source))
	}
	found := 0
	for path, text := range documents(t) {
		for _, block := range goBlock.FindAllStringSubmatch(text, -1) {
			for part := range strings.SplitSeq(lines(block[1]), "\n"+elision+"\n") {
				part = strings.Trim(part, "\n")
				if part == "" {
					continue // the block begins or ends with an elision
				}
				found++
				compiled := strings.Contains(code.String(), "\n"+part+"\n")
				require.True(t, compiled, "%s shows code that is in no Go file:\n%s", path, part)
			}
		}
	}
	require.Greater(t, found, 10)
}
