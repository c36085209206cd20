package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/leasefence/leasefence/fence/internal/sqlmark"
)

// Queryer is an argument of [Marks.UpdateRow]: a *sql.Tx, a *sql.DB or a *sql.Conn.
type Queryer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// fit returns an error if q cannot be used. It also finds nil pointers in the interface.
func fit(q Queryer, dialect Dialect) error {
	switch q {
	case nil, (*sql.Conn)(nil):
		return errors.New("sqlfence: q is nil, want a *sql.Tx, *sql.DB or *sql.Conn")
	case (*sql.DB)(nil):
		return errors.New("sqlfence: db is nil, want a *sql.DB")
	case (*sql.Tx)(nil):
		return errors.New("sqlfence: tx is nil, want a *sql.Tx that has begun")
	}
	if db, ok := q.(*sql.DB); ok {
		return dialect.fits(db)
	}
	return nil
}

// conn is a Queryer for the engine.
type conn struct{ q Queryer }

func (c conn) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	result, err := c.q.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (c conn) QueryRow(ctx context.Context, query string, args ...any) sqlmark.Scanner {
	return c.q.QueryRowContext(ctx, query, args...)
}

// library is database/sql for the engine.
type library struct {
	dialect Dialect
	level   sql.IsolationLevel
}

func (l library) FitDB(db *sql.DB) error     { return fit(db, l.dialect) }
func (l library) FitTx(tx *sql.Tx) error     { return fit(tx, l.dialect) }
func (library) Conn(tx *sql.Tx) sqlmark.Conn { return conn{tx} }

func (l library) Begin(ctx context.Context, db *sql.DB, newest bool) (*sql.Tx, error) {
	level := l.level
	switch {
	case !newest:
	case l.dialect == PostgreSQL: // at higher levels a write fails if the row has changed since the snapshot
		level = sql.LevelReadCommitted
	default:
		// On MySQL a write sees the newest version at every level, and a server with statement-based logging refuses
		// writes at read committed.
		level = sql.LevelDefault
	}
	return db.BeginTx(ctx, &sql.TxOptions{Isolation: level})
}

func (library) Rows(ctx context.Context, tx *sql.Tx, scan func(sqlmark.Scanner) error, query string, args ...any) (err error) {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// The context of Begin ends the transaction.
func (library) Commit(_ context.Context, tx *sql.Tx) error   { return tx.Commit() }
func (library) Rollback(_ context.Context, tx *sql.Tx) error { return tx.Rollback() }

func (library) Ended(err error) bool { return errors.Is(err, sql.ErrTxDone) }
func (library) Unsent(error) bool    { return false }

// Dialect is the kind of database.
type Dialect int

// The dialects. MySQL is also that of MariaDB.
const (
	PostgreSQL = Dialect(sqlmark.PostgreSQL)
	MySQL      = Dialect(sqlmark.MySQL)
	SQLite     = Dialect(sqlmark.SQLite)
)

// String returns the name of the constant.
func (d Dialect) String() string { return sqlmark.Dialect(d).String() }

// drivers are the types of the usual drivers. A driver that is not listed, for example one that wraps another for
// tracing, is accepted.
var drivers = map[string]Dialect{
	"*stdlib.Driver":        PostgreSQL, // github.com/jackc/pgx
	"*pq.Driver":            PostgreSQL, // github.com/lib/pq
	"*mysql.MySQLDriver":    MySQL,      // github.com/go-sql-driver/mysql
	"mysql.MySQLDriver":     MySQL,
	"*sqlite.Driver":        SQLite, // modernc.org/sqlite
	"*sqlite3.SQLiteDriver": SQLite, // github.com/mattn/go-sqlite3
	"*driver.SQLite":        SQLite, // github.com/ncruces/go-sqlite3
}

// fits returns an error if the driver is listed with another dialect.
func (d Dialect) fits(db *sql.DB) error {
	name := fmt.Sprintf("%T", db.Driver())
	if of, known := drivers[name]; known && of != d {
		return fmt.Errorf("sqlfence: dialect is %s, want that of db's driver %s, %s", d, name, of)
	}
	return nil
}
