package sqlfence

import (
	"context"
	"database/sql"
	"errors"

	"github.com/leasefence/leasefence/internal/sqlmark"
)

// Queryer is what [Fence.UpdateRow] writes through: a *sql.Tx, a *sql.DB or a *sql.Conn.
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

// transaction is a transaction for the engine. It ends with the context that it was begun with, whatever the context of
// its end.
type transaction struct {
	conn
	tx *sql.Tx
}

func (t transaction) Commit(context.Context) error   { return t.tx.Commit() }
func (t transaction) Rollback(context.Context) error { return t.tx.Rollback() }

// database is a pool for the engine.
type database struct {
	conn
	db   *sql.DB
	opts *sql.TxOptions
}

func newDatabase(db *sql.DB, opts *sql.TxOptions) database { return database{conn{db}, db, opts} }

func (d database) Begin(ctx context.Context) (transaction, error) {
	tx, err := d.db.BeginTx(ctx, d.opts)
	return transaction{conn{tx}, tx}, err
}

// checkQueryer also finds the nil pointers that an interface hides.
func (f *Fence) checkQueryer(q Queryer) error {
	switch q := q.(type) {
	case nil:
		return errors.New("sqlfence: q is nil, want a *sql.Tx, *sql.DB or *sql.Conn")
	case *sql.DB:
		return f.checkDB(q)
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
