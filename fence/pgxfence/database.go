package pgxfence

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasefence/leasefence/fence/internal/sqlmark"
)

// rollbackTimeout bounds a ROLLBACK instead of the context, which may have ended. If the connection does not answer in
// time, it is closed and the server rolls back.
const rollbackTimeout = 5 * time.Second

// Queryer is an argument of [Marks.UpdateRow]: a [DB] or a pgx.Tx.
type Queryer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// DB begins transactions: a *pgxpool.Pool, a *pgxpool.Conn or a *pgx.Conn. A connection must not be in a transaction,
// and only one goroutine may use it at a time.
type DB interface {
	Queryer
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// conn is a Queryer for the engine.
type conn struct{ q Queryer }

func (c conn) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := c.q.Exec(ctx, query, args...)
	return tag.RowsAffected(), err
}

func (c conn) QueryRow(ctx context.Context, query string, args ...any) sqlmark.Scanner {
	return c.q.QueryRow(ctx, query, args...)
}

// library is pgx for the engine.
type library struct{ opts pgx.TxOptions }

func (library) Conn(tx pgx.Tx) sqlmark.Conn { return conn{tx} }

// Begin with newest is for the engine's own writes. At higher levels they fail if the row has changed since the
// snapshot.
func (l library) Begin(ctx context.Context, db DB, newest bool) (pgx.Tx, error) {
	if newest {
		return db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	}
	return db.BeginTx(ctx, l.opts)
}

func (library) Rows(ctx context.Context, tx pgx.Tx, scan func(sqlmark.Scanner) error, query string, args ...any) error {
	rows, err := tx.Query(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (library) Commit(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) }

// Rollback has its own timeout, because pgx closes the connection if ctx has ended.
func (library) Rollback(ctx context.Context, tx pgx.Tx) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	return tx.Rollback(ctx)
}

func (library) Ended(err error) bool  { return errors.Is(err, pgx.ErrTxClosed) }
func (library) Unsent(err error) bool { return pgconn.SafeToRetry(err) }

func (library) FitTx(tx pgx.Tx) error {
	if absent(tx) {
		return errors.New("pgxfence: tx is nil, want a pgx.Tx that has begun")
	}
	return nil
}

// FitDB refuses a db that is in a transaction: PostgreSQL only warns of a BEGIN inside a transaction, and Do would
// commit the caller's writes.
func (library) FitDB(db DB) error {
	if absent(db) {
		return errors.New("pgxfence: db is nil or released, want a *pgxpool.Pool, *pgxpool.Conn or *pgx.Conn")
	}
	var c *pgx.Conn
	inside := false
	switch db := db.(type) {
	case *pgxpool.Conn:
		c = db.Conn()
	case *pgx.Conn:
		c = db
	case pgx.Tx:
		inside = true
	}
	if inside || c != nil && !c.IsClosed() && c.PgConn().TxStatus() != 'I' {
		return errors.New("pgxfence: db is in a transaction, want a pool or an idle connection; " +
			"in your own transaction call Check or CheckShared")
	}
	return nil
}

// absent reports whether q is nil, one of pgx's nil pointers or a connection that was given back to its pool.
func absent(q any) bool {
	switch q {
	case nil, (*pgxpool.Pool)(nil), (*pgxpool.Conn)(nil), (*pgxpool.Tx)(nil), (*pgx.Conn)(nil):
		return true
	}
	c, ok := q.(*pgxpool.Conn)
	return ok && released(c)
}

// released reports whether c was released. Only the panic of its methods shows that.
func released(c *pgxpool.Conn) (yes bool) {
	defer func() { yes = recover() != nil }()
	c.Conn()
	return false
}
