package mix

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"path/filepath"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/fence/sqlfence"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// database is a register in a database, fenced by package sqlfence: the check of a token is a part of the transaction.
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

// serve does what a request asks of a register in the database.
func (s *store) serve(w http.ResponseWriter, r *http.Request, name string) {
	q := requestOf(r)
	// It is not given up when the client goes: what is recorded is committed.
	ctx := fence.NewContext(context.WithoutCancel(r.Context()), q.token)
	var err error
	switch q.verb {
	case history.Claim:
		if err = s.database.marks.Claim(ctx, s.database.db, name); err == nil {
			s.log.Record(q.event(name, history.OK, q.token))
		}
	default:
		err = s.database.marks.Do(ctx, s.database.db, name, func(ctx context.Context, tx *sql.Tx) (err error) {
			if q.verb == history.Read {
				err = tx.QueryRowContext(ctx, "SELECT value FROM registers WHERE name = ?", name).Scan(&q.value)
				if errors.Is(err, sql.ErrNoRows) {
					q.value, err = "", nil
				}
			} else {
				_, err = tx.ExecContext(ctx, "INSERT INTO registers VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
					name, q.value)
			}
			if err == nil { // before the commit, which SQLite lets only one make at a time, so that the order is right
				s.log.Record(q.event(name, history.OK, q.token))
			}
			return err
		})
	}
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	_, _ = w.Write([]byte(q.value)) // an error says that the client has gone
}
