package sqlfence

import (
	"context"
	"database/sql"
	"errors"

	"github.com/leasefence/leasefence/fence/internal/sqlmark"
)

// Queryer is an argument of [Marks.UpdateRow]: a *sql.Tx, a *sql.DB or a *sql.Conn.
type Queryer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
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

// transaction is a transaction for the engine. The context of Begin ends it.
type transaction struct {
	conn
	tx *sql.Tx
}

func (t transaction) Commit(context.Context) error   { return t.tx.Commit() }
func (t transaction) Rollback(context.Context) error { return t.tx.Rollback() }

// database is a pool for the engine.
type database struct {
	db           *sql.DB
	opts, newest *sql.TxOptions
}

func (m *Marks) database(db *sql.DB) database {
	d := database{db: db, opts: m.txOpts, newest: m.txOpts}
	if m.dialect == PostgreSQL {
		// At higher levels a write fails if the row has changed since the snapshot. On MySQL a write sees the newest
		// version at every level, and a server with statement-based logging refuses writes at this level.
		d.newest = &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	}
	return d
}

func (d database) Begin(ctx context.Context) (transaction, error) { return d.begin(ctx, d.opts) }

func (d database) BeginNewest(ctx context.Context) (transaction, error) {
	return d.begin(ctx, d.newest)
}

func (d database) begin(ctx context.Context, opts *sql.TxOptions) (transaction, error) {
	tx, err := d.db.BeginTx(ctx, opts)
	return transaction{conn{tx}, tx}, err
}

// checkQueryer also finds nil pointers in the interface.
func (m *Marks) checkQueryer(q Queryer) error {
	switch q := q.(type) {
	case nil:
		return errors.New("sqlfence: q is nil, want a *sql.Tx, *sql.DB or *sql.Conn")
	case *sql.DB:
		return m.checkDB(q)
	case *sql.Tx:
		if q == nil {
			return errors.New("sqlfence: q is a nil *sql.Tx, want one that has begun")
		}
	case *sql.Conn:
		if q == nil {
			return errors.New("sqlfence: q is a nil *sql.Conn, want one that is open")
		}
	}
	return nil
}
