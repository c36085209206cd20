package mix

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// database has a register that package sqlfence fences: the check of the token is part of the write's transaction.
type database struct {
	db    *sql.DB
	marks *sqlfence.Marks
}

func openDatabase(ctx context.Context, dir string) (d *database, err error) {
	d = &database{}
	if d.marks, err = sqlfence.New(sqlfence.SQLite, sqlfence.Options{}); err != nil {
		return nil, err
	}
	dsn := "file:" + filepath.Join(dir, "resources.sqlite") +
		"?_pragma=busy_timeout(30000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)"
	if d.db, err = sql.Open("sqlite", dsn); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if err := d.marks.Migrate(ctx, d.db); err != nil {
		return nil, err
	}
	_, err = d.db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS registers (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
	return d, err
}

func (d *database) close() error { return d.db.Close() }

// serve serves a request to a register in the database.
func (s *store) serve(w http.ResponseWriter, r *http.Request, it *item) {
	q, name := requestOf(r), it.name
	// The request does not end when the client goes away: what is recorded must be committed.
	ctx := fence.NewContext(context.WithoutCancel(r.Context()), q.token)
	record := func() { s.log.Record(q.event(name, history.OK, q.token)) }
	var err error
	switch {
	case q.verb.OfReader():
		q.value, err = s.readInSQL(context.WithoutCancel(r.Context()), it, q)
	case q.verb == history.Claim:
		if err = s.database.marks.Claim(ctx, s.database.db, name); err == nil {
			it.step(record, 0)
		}
	default:
		open := 0
		defer func() { it.shut(open) }()
		err = s.database.marks.Do(ctx, s.database.db, name, func(ctx context.Context, tx *sql.Tx) (err error) {
			if q.verb == history.Read {
				q.value, err = registerIn(ctx, tx, name)
			} else {
				_, err = tx.ExecContext(ctx, "INSERT INTO registers VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
					name, q.value)
			}
			if err == nil { // before the commit: SQLite has one writer at a time, so the record is in order
				it.step(record, 1)
				open++
			}
			return err
		})
	}
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	_, _ = w.Write([]byte(q.value)) // it fails only if the client has gone
}

func registerIn(ctx context.Context, tx *sql.Tx, name string) (value string, err error) {
	err = tx.QueryRowContext(ctx, "SELECT value FROM registers WHERE name = ?", name).Scan(&value)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return value, err
}

// readInSQL serves a reader. Its transaction runs beside those of writers, so it may miss a write that is already
// recorded. If a writer's step came in between, the read is repeated, so that the record is in order.
func (s *store) readInSQL(ctx context.Context, it *item, q request) (string, error) {
	ctx = fence.NewReadContext(ctx, fence.ReadToken(q.token))
	for {
		it.mu.Lock()
		steps, quiet := it.steps, it.open == 0
		it.mu.Unlock()
		if err := s.database.read(ctx, it.name, &q); err != nil {
			return "", err
		}
		it.mu.Lock()
		done := quiet && it.steps == steps
		if done {
			s.log.Record(q.event(it.name, history.OK, q.token))
		}
		it.mu.Unlock()
		if done {
			return q.value, nil
		}
		time.Sleep(time.Millisecond)
	}
}

// read makes one attempt.
func (d *database) read(ctx context.Context, name string, q *request) error {
	if q.verb == history.ClaimRead {
		return d.marks.ClaimRead(ctx, d.db, name)
	}
	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after the commit there is nothing to roll back
	if err := d.marks.CheckRead(ctx, tx, name); err != nil {
		return err
	}
	if q.value, err = registerIn(ctx, tx, name); err != nil {
		return err
	}
	return tx.Commit()
}
