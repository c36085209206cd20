package mix

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// database has registers that package sqlfence fences: the check of the token is part of the write's transaction.
type database struct {
	db    *sql.DB
	marks *sqlfence.Marks

	// Held alone by whoever records a step after its commit, and shared by those that record it before: SQLite has one
	// writer at a time, so the record is in order.
	order sync.RWMutex
}

func openDatabase(ctx context.Context, tb testing.TB) *database {
	tb.Helper()
	marks, err := sqlfence.New(sqlfence.SQLite, sqlfence.Options{})
	require.NoError(tb, err)
	dsn := "file:" + filepath.Join(tb.TempDir(), "resources.sqlite") +
		"?_pragma=busy_timeout(30000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)"
	db, err := sql.Open("sqlite", dsn)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, db.Close()) })
	require.NoError(tb, marks.Migrate(ctx, db))
	_, err = db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS registers (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
	require.NoError(tb, err)
	return &database{db: db, marks: marks}
}

// serveSQL serves a request to a register in the database. It does not end when the client goes away: what is recorded
// must be committed.
func (s *store) serveSQL(w http.ResponseWriter, r *http.Request, q request) {
	ctx := fence.NewContext(context.WithoutCancel(r.Context()), q.token)
	record := func() { s.log.Record(q.event(q.name, history.OK, q.token)) }
	var err error
	switch {
	case q.verb == history.Claim, q.verb.OfReader():
		s.database.order.Lock()
		if err = s.database.claimOrRead(ctx, &q); err == nil {
			record()
		}
		s.database.order.Unlock()
	default:
		s.database.order.RLock()
		err = s.database.marks.Do(ctx, s.database.db, q.name, func(ctx context.Context, tx *sql.Tx) (err error) {
			if q.verb == history.Read {
				q.value, err = registerIn(ctx, tx, q.name)
			} else {
				_, err = tx.ExecContext(ctx, "INSERT INTO registers VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
					q.name, q.value)
			}
			if err == nil {
				record()
			}
			return err
		})
		s.database.order.RUnlock()
	}
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	_, _ = w.Write([]byte(q.value)) // it fails only if the client has gone
}

func (d *database) claimOrRead(ctx context.Context, q *request) error {
	if q.verb == history.Claim {
		return d.marks.Claim(ctx, d.db, q.name)
	}
	ctx = fence.NewReadContext(ctx, fence.ReadToken(q.token))
	if q.verb == history.ClaimRead {
		return d.marks.ClaimRead(ctx, d.db, q.name)
	}
	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after the commit there is nothing to roll back
	if err := d.marks.CheckRead(ctx, tx, q.name); err != nil {
		return err
	}
	if q.value, err = registerIn(ctx, tx, q.name); err != nil {
		return err
	}
	return tx.Commit()
}

func registerIn(ctx context.Context, tx *sql.Tx, name string) (value string, err error) {
	err = tx.QueryRowContext(ctx, "SELECT value FROM registers WHERE name = ?", name).Scan(&value)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return value, err
}
