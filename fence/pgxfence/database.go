package pgxfence

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasefence/leasefence/internal/sqlmark"
)

// rollbackTimeout bounds a ROLLBACK that the context does not bound, for it may have ended. A connection that does not
// answer in time is closed, and the server rolls back.
const rollbackTimeout = 5 * time.Second

// Queryer is what [Fence.UpdateRow] writes through: a [DB] or a pgx.Tx.
type Queryer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// DB is what begins transactions: a *pgxpool.Pool, a *pgxpool.Conn or a *pgx.Conn. A connection must not be in a
// transaction, and as ever only one goroutine may use it at a time.
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

// transaction is a transaction for the engine.
type transaction struct {
	conn
	tx pgx.Tx
}

func (t transaction) Commit(ctx context.Context) error { return t.tx.Commit(ctx) }

// Rollback has a time of its own: pgx closes the connection if ctx has ended.
func (t transaction) Rollback(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	return t.tx.Rollback(ctx)
}

// database is a DB for the engine.
type database struct {
	conn
	db   DB
	opts pgx.TxOptions
}

func newDatabase(db DB, opts pgx.TxOptions) database { return database{conn{db}, db, opts} }

func (d database) Begin(ctx context.Context) (transaction, error) {
	tx, err := d.db.BeginTx(ctx, d.opts)
	return transaction{conn{tx}, tx}, err
}

// checkDB refuses what would not begin a transaction: PostgreSQL only warns of a BEGIN inside one, and what Do commits
// would be the caller's.
func checkDB(db DB) error {
	if absent(db) {
		return errors.New("pgxfence: db is nil, want a *pgxpool.Pool, *pgxpool.Conn or *pgx.Conn")
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
			"in a transaction of your own call Check or CheckShared")
	}
	return nil
}

// absent also finds the nil pointers that an interface hides.
func absent(q Queryer) bool {
	switch q := q.(type) {
	case nil:
		return true
	case *pgxpool.Pool:
		return q == nil
	case *pgxpool.Conn:
		return q == nil
	case *pgxpool.Tx:
		return q == nil
	case *pgx.Conn:
		return q == nil
	}
	return false
}
